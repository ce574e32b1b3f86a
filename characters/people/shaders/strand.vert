in vec4 position;
in float shown_here;
flat out float shown;
void main() {
    shown = shown_here;
    gl_Position = position;
}
