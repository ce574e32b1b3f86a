// The light that reaches the camera through every sample, from what the sample shows.
layout(local_size_x = 8, local_size_y = 8) in;
layout(rgba16f, binding = 0) writeonly uniform image2D raw;
uniform usampler2D ids;
uniform int cloth_first;

void main() {
    ivec2 at = ivec2(gl_GlobalInvocationID.xy);
    if (any(greaterThanEqual(at, ivec2(size.xy)))) return;
    uint word = texelFetch(ids, at, 0).r, what = word >> 28, id = word & 0x0FFFFFFFu;
    if (what == 0u) { imageStore(raw, at, vec4(0)); return; }
    vec2 ndc = (vec2(at) + .5) / size.xy * 2. - 1.;
    vec3 ray = normalize(ahead.xyz + ndc.x * across.xyz + ndc.y * above.xyz);
    float turn = 6.2831 * hash(vec3(at, 1.));
    if (what == STRAND) {
        int a = pieces[id], b = a + 1;
        vec3 pa = strand[a].xyz, pb = strand[b].xyz, d = pb - pa, w = pa - camera.xyz;
        float dr = dot(d, ray), u = clamp((dot(w, ray) * dr - dot(w, d)) / max(dot(d, d) - dr * dr, 1e-9), 0., 1.);
        vec3 n = mix(strand_normals[a].xyz, strand_normals[b].xyz, u);
        vec4 t = mix(strand_traits[a], strand_traits[b], u);
        n = normalize(mat3(head) * n);
        vec3 before = t.x > .05 && strand_traits[a].x > 0. ? strand[a - 1].xyz : pa;
        vec3 along = normalize(mix(pb - before, d, u));
        imageStore(raw, at, vec4(max(shade_strand(mix(pa, pb, u), along, n, -ray, t, turn), 0.), .5));
        return;
    }
    int first = 3 * (what == MESH ? int(id) : cloth_first + int(id));
    int i = triangles[first], j = triangles[first + 1], k = triangles[first + 2];
    float off = what == CLOTH ? SHIRT_OFF : what == JACKET ? JACKET_OFF : 0.;
    vec3 a = posed[i].xyz + normal[i].xyz * off, b = posed[j].xyz + normal[j].xyz * off, c = posed[k].xyz + normal[k].xyz * off;
    vec3 ab = b - a, ac = c - a, cross_ray = cross(ray, ac), from = camera.xyz - a;  // Moeller and Trumbore (1997)
    float det = dot(ab, cross_ray);
    det = abs(det) < 1e-12 ? 1e-12 : det;
    float u = dot(from, cross_ray) / det;
    vec3 q = cross(from, ab);
    float v = dot(ray, q) / det;
    u = clamp(u, 0., 1.); v = clamp(v, 0., 1. - u);
    vec3 w = vec3(1. - u - v, u, v);
    Surface s;
    s.p = a * w.x + b * w.y + c * w.z;
    s.n = normalize(normal[i].xyz * w.x + normal[j].xyz * w.y + normal[k].xyz * w.z);
    s.c = place[i].xyz * w.x + place[j].xyz * w.y + place[k].xyz * w.z;
    s.local = local[i].xyz * w.x + local[j].xyz * w.y + local[k].xyz * w.z;
    s.traits = traits[i] * w.x + traits[j] * w.y + traits[k] * w.z;
    vec4 sh = shade_of[i] * w.x + shade_of[j] * w.y + shade_of[k] * w.z;
    s.scalp = sh.x;
    s.ao = sh.w > 0. ? .12 + .88 * sh.z / sh.w : 1.;
    s.v = -ray;
    s.turn = turn;
    s.pixel = 2. * camera.w * length(s.p - camera.xyz) / size.y;
    int kind = int(place[i].w);
    vec3 colour;
    if (what != MESH) colour = shade_cloth(s, what == JACKET);
    else if (kind == SKIN) colour = shade_skin(s);
    else if (kind == LEFT_EYE) colour = shade_eye(s, mat3(turn_left));
    else if (kind == RIGHT_EYE) colour = shade_eye(s, mat3(turn_right));
    else if (kind == FRAME_PART) colour = shade_frame(s);
    else colour = shade_mouth(s, kind);
    imageStore(raw, at, vec4(max(colour, 0.), what == MESH && kind == SKIN ? 1. : .5));
}
