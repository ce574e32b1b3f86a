in vec4 position;
in float share;
flat out float cover;
void main() {
    cover = share;
    gl_Position = position;
}
