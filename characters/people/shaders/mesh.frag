layout(location = 0) out uint id;
void main() { id = MESH << 28 | uint(gl_PrimitiveID); }
