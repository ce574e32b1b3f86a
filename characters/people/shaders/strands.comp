// Moves the points of strands with the skin that they stand on, and with the head.
layout(local_size_x = 64) in;
uniform int count;

void main() {
    int v = int(gl_GlobalInvocationID.x);
    if (v >= count) return;
    vec3 p = strand_rest[v].xyz;
    int b = bound[v];
    if (b >= 0) p += local[b].xyz - rest[b].xyz;
    strand[v] = vec4(to_world(p, strand_rest[v].w), 1.);
}
