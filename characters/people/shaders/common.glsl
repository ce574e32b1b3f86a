// Kinds of vertices, as in mesh.py, and of what a pixel shows.
const int SKIN = 0, TOOTH = 1, GUM = 2, TONGUE = 3, LEFT_EYE = 4, RIGHT_EYE = 5, FRAME_PART = 6;
const uint MESH = 1u, CLOTH = 2u, JACKET = 3u, STRAND = 4u;
const float SHIRT_OFF = 0.035, JACKET_OFF = 0.10;  // how far clothes lie off the skin

float hash(vec3 p) {
    p = fract(p * vec3(.1031, .1030, .0973));
    p += dot(p, p.yxz + 33.33);
    return fract((p.x + p.y) * p.z);
}
float noise(vec3 p) {  // value noise
    vec3 i = floor(p), f = fract(p);
    f = f * f * (3. - 2. * f);
    return mix(mix(mix(hash(i), hash(i + vec3(1, 0, 0)), f.x), mix(hash(i + vec3(0, 1, 0)), hash(i + vec3(1, 1, 0)), f.x), f.y),
               mix(mix(hash(i + vec3(0, 0, 1)), hash(i + vec3(1, 0, 1)), f.x), mix(hash(i + vec3(0, 1, 1)), hash(i + vec3(1, 1, 1)), f.x), f.y), f.z);
}
float fbm(vec3 p) {
    return .5 * noise(p) + .25 * noise(p * 2.03 + 7.) + .125 * noise(p * 4.1 + 3.) + .0625 * noise(p * 8.2 + 1.);
}
float bump(vec3 p, vec3 centre, vec3 size) {
    vec3 d = (p - centre) / size;
    return exp(-dot(d, d));
}
vec3 to_world(vec3 p, float share) { return mix(p, (head * vec4(p, 1.)).xyz, share); }

// Does the cloth reach here? `c`: the place on the base person.
float cloth_edge(vec3 c) {
    return dress.x - .42 * (c.z - .1) - dress.y * max(0., 1. - abs(c.x) / .42) * smoothstep(.1, .6, c.z) - c.y;
}
float jacket_edge(vec3 c) {
    float edge = cloth_edge(c), lap = abs(c.x) - .16 - .34 * smoothstep(4., 5.3, c.y) - .02;
    if (c.z > 0. && c.y < 6.) edge = min(edge, lap);
    return edge;
}
