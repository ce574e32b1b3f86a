in vec4 position;
uniform int light;
void main() { gl_Position = (light == 1 ? light_view : view) * position; }
