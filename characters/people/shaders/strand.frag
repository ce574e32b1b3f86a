flat in float cover;
layout(location = 0) out uint id;
void main() {
    if (hash(vec3(gl_FragCoord.xy, float(gl_PrimitiveID % 8191))) > cover) discard;
    id = STRAND << 28 | uint(gl_PrimitiveID / 2);
}
