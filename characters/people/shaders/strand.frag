flat in float shown;
layout(location = 0) out uint id;
void main() {
    if (shown < .5) discard;
    id = STRAND << 28 | uint(gl_PrimitiveID / 2);
}
