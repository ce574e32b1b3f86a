uniform sampler2D shadow;

vec3 sky(vec3 n) {
    return max(ambient[0].rgb + ambient[1].rgb * n.y + ambient[2].rgb * n.z + ambient[3].rgb * n.x + ambient[4].rgb * n.x * n.y
        + ambient[5].rgb * n.y * n.z + ambient[6].rgb * (3. * n.z * n.z - 1.) + ambient[7].rgb * n.x * n.z
        + ambient[8].rgb * (n.x * n.x - n.y * n.y), vec3(0.));
}
// Share of the key light that reaches p: a soft shadow of 12 samples.
float lit(vec3 p, float bias, float turn) {
    vec3 c = (light_view * vec4(p, 1.)).xyz * .5 + .5;
    float s = 0.;
    for (int i = 0; i < 12; i++) {
        float r = sqrt((float(i) + .5) / 12.) * skin_c.w, t = turn + float(i) * 2.39996;
        s += texture(shadow, c.xy + r * vec2(cos(t), sin(t))).r < c.z - bias - .6 * r ? 0. : 1.;
    }
    return s / 12.;
}
float ggx(float nh, float a) { float a2 = a * a, d = nh * nh * (a2 - 1.) + 1.; return a2 / (3.14159 * d * d); }
float gloss(vec3 n, vec3 v, vec3 l, float rough) {  // GGX with Smith's shadowing and Schlick's Fresnel
    vec3 h = normalize(l + v);
    float nl = max(dot(n, l), 0.), nv = max(dot(n, v), .05), nh = max(dot(n, h), 0.), vh = max(dot(v, h), 0.);
    float k = rough * rough * .5, f = .04 + .96 * pow(1. - vh, 5.);
    return ggx(nh, rough * rough) * f / (4. * (nl * (1. - k) + k) * (nv * (1. - k) + k)) * nl;
}
