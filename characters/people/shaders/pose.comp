// Moves every vertex of the mesh as the frame's units, jaw, eyes and head say.
layout(local_size_x = 64) in;
uniform int count, moved;

void main() {
    int v = int(gl_GlobalInvocationID.x);
    if (v >= count) return;
    vec4 r = rest[v];
    vec3 p = r.xyz;
    int kind = int(place[v].w);
    if (v < moved) {
        for (uint k = offsets[v]; k < offsets[v + 1]; k++) {
            int u = int(moves[k].w);
            p += units[u >> 2][u & 3] * moves[k].xyz * (kind == TONGUE ? tongue.x : 1.);
        }
    }
    if (kind == TONGUE) p += tongue.yzw;
    if ((kind == TOOTH || kind == GUM) && traits[v].y > .5)
        p += mouth.w * vec3(dot(jaw_x, vec4(p, 1.)), dot(jaw_y, vec4(p, 1.)), dot(jaw_z, vec4(p, 1.)));
    if (kind == LEFT_EYE) p = eye_left.xyz + mat3(turn_left) * (p - eye_left.xyz);
    if (kind == RIGHT_EYE) p = eye_right.xyz + mat3(turn_right) * (p - eye_right.xyz);
    p.y += .012 * motion.x * (1. - r.w);
    local[v] = vec4(p, r.w);
    posed[v] = vec4(to_world(p, r.w), 1.);
}
