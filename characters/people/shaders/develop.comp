// From light to the stored picture: samples to pixels, the room behind, film curve, colours.
layout(local_size_x = 8, local_size_y = 8) in;
uniform sampler2D raw;
uniform sampler2D room;
uniform int frame;

vec3 curve(vec3 x) { return x * (1. + x / 9.) / (1. + x * .75) * 1.35; }

void main() {
    ivec2 at = ivec2(gl_GlobalInvocationID.xy), out_size = ivec2(size.zw);
    if (any(greaterThanEqual(at, out_size))) return;
    float ss = size.x / size.z, sigma = ss * sqrt(.09 + window.z * window.z * size.z / 352.);
    int reach = int(min(ceil(2. * sigma), 6.));
    vec2 middle = (vec2(at) + .5) * ss - .5;
    vec4 sum = vec4(0);
    float weight = 0.;
    ivec2 base = ivec2(round(middle));
    for (int j = -reach; j <= reach; j++)
        for (int i = -reach; i <= reach; i++) {
            ivec2 q = clamp(base + ivec2(i, j), ivec2(0), ivec2(size.xy) - 1);
            vec2 d = vec2(base + ivec2(i, j)) - middle;
            float w = exp(-.5 * dot(d, d) / (sigma * sigma));
            vec4 x = texelFetch(raw, ivec2(q.x, int(size.y) - 1 - q.y), 0);
            sum += w * vec4(min(x.rgb, vec3(4.)), x.a > .1 ? 1. : 0.);
            weight += w;
        }
    sum /= weight;
    vec2 uv = (vec2(at) + .5) / vec2(out_size);
    vec3 x = sum.rgb + texture(room, uv).rgb * (1. - sum.a);
    vec2 off = (uv - vec2(.5, .45)) * vec2(1., 1.22);
    x *= (1. - grade.w * dot(off, off) * 1.6) * exposure[0] * temperature.rgb;
    float l = dot(x, vec3(.3, .55, .15));
    x = clamp(.5 * curve(x) + .5 * x * curve(vec3(l)) / max(l, 1e-4), 0., 1.);
    x = pow(x, vec3(1. / 2.2));
    x = .5 + (x - .5) * grade.y;
    float g = dot(x, vec3(1. / 3.));
    x = clamp(mix(vec3(g), x, grade.z), 0., 1.);
    uvec3 b = uvec3(x * 255. + .5);
    pixels[(frame * out_size.y + at.y) * out_size.x + at.x] = b.r | b.g << 8 | b.b << 16;
}
