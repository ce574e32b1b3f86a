// Adds one direction of the sky to every vertex that sees it.
layout(local_size_x = 64) in;
uniform sampler2D shadow;
uniform int count;
uniform vec3 from;

void main() {
    int v = int(gl_GlobalInvocationID.x);
    if (v >= count) return;
    float w = max(dot(normal[v].xyz, from), 0.) * (.6 + .4 * from.y);
    vec3 q = (light_view * vec4(posed[v].xyz + normal[v].xyz * .03, 1.)).xyz * .5 + .5;
    float seen = 0.;
    for (int i = 0; i < 4; i++) {
        vec2 d = (vec2(i & 1, i >> 1) - .5) * .006;
        seen += texture(shadow, q.xy + d).r > q.z - .002 ? .25 : 0.;
    }
    shade_of[v].zw += vec2(w * seen, w);
}
