in vec4 position;
in vec4 normal;
in vec4 place;
out vec3 c;
uniform float off;
void main() {
    c = place.xyz;
    gl_Position = view * vec4(position.xyz + normal.xyz * off, 1.);
}
