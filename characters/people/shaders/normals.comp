// World normals: from the moved quads for skin and tongue, turned with the part for the rest.
layout(local_size_x = 64) in;
uniform int count, smooth_count;

void main() {
    int v = int(gl_GlobalInvocationID.x);
    if (v >= count) return;
    vec3 n = still[v].xyz;
    int kind = int(place[v].w);
    if (v < smooth_count) {
        n = vec3(0);
        for (int k = 0; k < 8; k++) {
            int q = around[8 * v + k];
            if (q < 0) break;
            ivec4 c = quads[q];
            vec3 a = local[c.x].xyz;
            n += cross(local[c.z].xyz - a, local[c.w].xyz - a) + cross(local[c.y].xyz - a, local[c.z].xyz - a);
        }
        n = normalize(n + vec3(0, 0, 1e-9));
    }
    if (kind == LEFT_EYE) n = mat3(turn_left) * n;
    if (kind == RIGHT_EYE) n = mat3(turn_right) * n;
    float share = local[v].w;
    normal[v] = vec4(normalize(mix(n, mat3(head) * n, share)), 0.);
}
