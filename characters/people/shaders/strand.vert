// Every piece of a strand is a ribbon of two triangles that faces the viewer. A ribbon is never thinner than a sample;
// what it should be thinner, it is seldomer (`cover`).
flat out float cover;
uniform int light;
uniform float thicker;

vec2 screen(vec4 clip) { return clip.xy / clip.w * size.xy * .5; }

void main() {
    int piece = gl_VertexID / 6, corner = gl_VertexID % 6;
    int a = pieces[piece];
    mat4 to_clip = light == 1 ? light_view : view;
    bool far_end = corner == 1 || corner == 2 || corner == 4;
    float side = corner == 0 || corner == 1 || corner == 3 ? -1. : 1.;
    int v = far_end ? a + 1 : a;
    int before = far_end ? a : (strand_traits[a].x > 0. ? a - 1 : a), after = far_end ? (strand_traits[v].x < 1. ? v + 1 : v) : a + 1;
    vec4 at = to_clip * strand[v];
    vec2 along = screen(to_clip * strand[after]) - screen(to_clip * strand[before]);
    along = length(along) > 1e-6 ? normalize(along) : vec2(0, 1);
    float taper = strand_traits[v].w < .5 ? 1. - .75 * smoothstep(.55, 1., strand_traits[v].x) : 1.;
    float pixels = strand_normals[v].w * taper * thicker * size.y / (2. * camera.w * at.w);
    cover = clamp(pixels / .55, .08, 1.);
    pixels = max(pixels, .55);
    at.xy += vec2(-along.y, along.x) * side * (light == 1 ? vec2(.0035) : pixels * 2. / size.xy * at.w);
    gl_Position = at;
}
