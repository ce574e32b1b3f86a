// Both edges of every strand, as a ribbon that faces the viewer. A ribbon is never thinner than a sample; where strands
// should be thinner, fewer are shown (the second vec4's x), always the same ones, so that nothing flickers.
layout(local_size_x = 64) in;
uniform int count;

vec2 screen(vec4 clip) { return clip.xy / clip.w * size.xy * .5; }

void main() {
    int v = int(gl_GlobalInvocationID.x);
    if (v >= count) return;
    float t = strand_traits[v].x;
    vec4 at = view * strand[v];
    vec2 along = screen(view * strand[t < .999 ? v + 1 : v]) - screen(view * strand[t > .001 ? v - 1 : v]);
    along = length(along) > 1e-6 ? normalize(along) : vec2(0, 1);
    float taper = strand_traits[v].w < .5 ? 1. - .75 * smoothstep(.55, 1., t) : 1.;
    float pixels = strand_normals[v].w * taper * size.y / (2. * camera.w * at.w);
    vec2 aside = vec2(-along.y, along.x) * max(pixels, .55) * 2. / size.xy * at.w;
    vec4 shown = vec4(fract(strand_traits[v].y * 91.7) < pixels / .55, 0., 0., 0.);
    ribbon[4 * v] = at - vec4(aside, 0., 0.);
    ribbon[4 * v + 1] = shown;
    ribbon[4 * v + 2] = at + vec4(aside, 0., 0.);
    ribbon[4 * v + 3] = shown;
}
