in vec3 c;
layout(location = 0) out uint id;
uniform int layer;
void main() {
    if ((layer == 1 ? jacket_edge(c) : cloth_edge(c)) < 0.) discard;
    id = (layer == 1 ? JACKET : CLOTH) << 28 | uint(gl_PrimitiveID);
}
