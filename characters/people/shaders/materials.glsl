vec3 shade_eye(Surface s, mat3 turned) {
    vec3 l = s.c, h = turned * l, n = s.n, v = s.v;
    vec3 seen = transpose(mat3(head) * turned) * v;
    float radius = .49;
    vec2 p = l.xy / radius;
    float r = length(p) + (l.z < 0. ? 9. : 0.);
    vec2 deep = p - seen.xy * .18 * (1. - min(r, 1.));  // the iris lies below the cornea
    float ri = length(deep), angle = atan(deep.y, deep.x), seed = skin_a.x + s.traits.x;
    float wander = fbm(vec3(l.xy * 9., seed));
    float vein = smoothstep(.06, .0, abs(fbm(vec3(l.xy * 5. + .6 * wander, seed + 2.)) - .46)) * smoothstep(1.3, 2., r);
    vec3 white = vec3(.72, .67, .63) * exp(-vec3(.04, .22, .22) * (hair_a.z * (vein * 1.2 + smoothstep(1.4, 2.2, r))));
    float fibres = .5 * noise(vec3(angle * 14., ri * 3., seed)) + .5 * noise(vec3(angle * 34., ri * 5., seed + 4.));
    vec3 coloured = mix(iris.rgb, iris_inner.rgb, smoothstep(.75, .35, ri) * (.5 + fibres * .6)) * (.45 + fibres);
    coloured *= mix(1., .30, smoothstep(.72, 1., ri));
    coloured *= smoothstep(hair_a.w - .03, hair_a.w + .06, ri) * .985 + .015;
    vec3 alb = mix(coloured, white, smoothstep(.93, 1.08, r));
    float top = .55 - .5 * smoothstep(0., 1., motion.y) - .35 * max(motion.z, 0.);
    float upper = smoothstep(top + .06, top - .34, h.y), lower = smoothstep(-.60, -.33, h.y);
    float ao = mix(.22, 1., upper) * mix(.6, 1., lower) * mix(.5, 1., smoothstep(.85, .35, abs(h.x)));
    float sun = lit(s.p + n * .03, .004, s.turn);
    vec3 d = sky(n) * ao;
    for (int i = 0; i < 3; i++) {
        float x = clamp((dot(n, light_direction[i].xyz) + .35) / 1.35, 0., 1.);
        d += light_colour[i].rgb * x * mix(ao, 1., .15) * (i == 0 ? mix(.35, 1., sun) : 1.);
    }
    vec3 dome = mat3(head) * turned * normalize(vec3(l.xy * 2.6, sqrt(max(.05, 1. - dot(l.xy, l.xy) * 6.))));
    vec3 nc = normalize(mix(n, dome, smoothstep(1.15, .85, r))), away = reflect(-v, nc);
    vec3 colour = alb * d * mix(vec3(1., .86, .82), vec3(1.), ao);
    // a window, or a lamp, in the cornea
    vec3 key = light_direction[0].xyz, x = normalize(cross(key, vec3(0, 1, 0))), y = cross(x, key);
    vec2 q = abs(vec2(dot(away, x), dot(away, y)));
    float glint = step(0., dot(away, key)) * smoothstep(window.x * 1.25, window.x * .85, q.x) * smoothstep(window.y * 1.25, window.y * .85, q.y);
    colour += glint * min(light_colour[0].rgb, vec3(4.)) * .55 * mix(.5, 1., upper);
    colour += sky(away) * (.025 + .6 * pow(1. - max(dot(nc, v), 0.), 5.)) * 1.2 * ao;
    // the wet edge of the lower lid
    colour += .25 * light_colour[0].rgb * sun * gloss(n, v, key, .2) * ao;
    return colour;
}
vec3 shade_mouth(Surface s, int kind) {
    vec3 n = s.n, v = s.v, alb;
    float depth = smoothstep(skin_c.x - .66, skin_c.x - .14, s.local.z), open = mouth.x * (1. - .6 * mouth.y);
    float side = 1. - smoothstep(.14, .38, abs(s.local.x)) * .6;
    float ao = (.06 + .85 * depth) * side * clamp(.6 + .6 * open, 0., 1.), rough = .2, k = .8;
    if (kind == TOOTH) {
        float edge = s.traits.x;
        alb = tooth.rgb * mix(vec3(.80, .66, .50), vec3(1.), smoothstep(0., .55, edge));
        alb *= mix(vec3(1.), vec3(.86, .90, .95), smoothstep(.86, 1., edge)) * (.94 + .12 * s.traits.z);
        ao *= mix(.55, 1., smoothstep(.05, .5, abs(dot(n, v))));
    } else if (kind == GUM) {
        alb = vec3(.44, .14, .13);
        rough = .28; k = 1.;
    } else {
        alb = vec3(.42, .13, .12) * (.75 + .5 * fbm(s.c * 60.));
        alb *= 1. - .35 * exp(-s.local.x * s.local.x / .0012);
        n = normalize(n + .25 * (vec3(noise(s.c * 90.), noise(s.c * 90. + 7.), noise(s.c * 90. + 3.)) - .5));
        rough = .4; k = .6;
        ao *= .95 * smoothstep(-.02, .12, open) * mix(.3, 1., depth);
    }
    float sun = lit(s.p + n * .02, .006, s.turn);
    vec3 d = sky(normalize(n + vec3(0, 0, .6))) * ao;
    for (int i = 0; i < 3; i++) {
        float x = clamp((dot(n, light_direction[i].xyz) + .4) / 1.4, 0., 1.);
        d += light_colour[i].rgb * x * ao * (i == 0 ? mix(.25, 1., sun) : .6);
    }
    vec3 shine = light_colour[0].rgb * sun * gloss(n, v, light_direction[0].xyz, rough) * ao + sky(reflect(-v, n)) * .04 * ao;
    return alb * d + shine * k;
}
vec3 shade_cloth(Surface s, bool jacket) {
    vec3 c = s.c, n = s.n, v = s.v;
    float seed = skin_a.x, kind = dress.z, edge = jacket ? jacket_edge(c) : cloth_edge(c);
    float close = smoothstep(.014, .005, s.pixel);
    float weave = kind < .5 ? sin(c.x * 260.) * sin(c.y * 260.) : kind < 1.5 ? sin(c.x * 120. + .3 * sin(c.y * 240.)) : fbm(c * 40.);
    weave *= kind > 1.5 ? 1. : close;
    vec3 slope = vec3(0);
    float e = .02;
    for (int i = 0; i < 3; i++) {
        vec3 d = vec3(i == 0, i == 1, i == 2) * e;
        vec3 a = c + d, b = c - d;
        float up = fbm(vec3(a.x * 1.6 + seed, a.y * 1.3 + abs(a.x) * .8, a.z)) + .5 * fbm(a * 3.7 + seed);
        float dn = fbm(vec3(b.x * 1.6 + seed, b.y * 1.3 + abs(b.x) * .8, b.z)) + .5 * fbm(b * 3.7 + seed);
        slope[i] = (up - dn) / (2. * e) * .14;
    }
    slope -= dot(slope, n) * n;
    n = normalize(n - slope + .06 * weave * vec3(1, 1, 0));
    vec3 alb = cloth.rgb;
    if (kind > 2.5) alb = mix(cloth.rgb, cloth_second.rgb, smoothstep(.45, .55, abs(fract(c.y * 4. + .1 * sin(c.x * 3.)) - .5) * 2.));
    if (kind > 1.5 && kind < 2.5) alb = mix(cloth.rgb, mix(cloth.rgb, cloth_second.rgb, .35), smoothstep(.4, .6, fbm(c * 12. + seed)));
    if (jacket) alb = cloth_second.rgb;
    alb *= .90 + .14 * weave + .10 * fbm(c * 8.);
    alb *= 1. - .35 * exp(-pow((edge - .09) / .010, 2.));  // a seam
    float ao = s.ao * (.55 + .45 * smoothstep(0., .16, edge)), sun = lit(s.p + n * .02, .004, s.turn);
    vec3 d = sky(n) * ao;
    for (int i = 0; i < 3; i++)
        d += light_colour[i].rgb * clamp((dot(n, light_direction[i].xyz) + .08) / 1.08, 0., 1.) * (i == 0 ? sun : ao);
    return alb * d + alb * pow(1. - max(dot(n, v), 0.), 3.) * sky(n) * .35;
}
vec3 shade_frame(Surface s) {
    vec3 n = dot(s.n, s.v) < 0. ? -s.n : s.n;
    float metal = hair_b.w, sun = lit(s.p + n * .02, .005, s.turn);
    vec3 d = sky(n), shine = sky(reflect(-s.v, n)) * (.05 + metal * .6 + .4 * pow(1. - max(dot(n, s.v), 0.), 5.));
    for (int i = 0; i < 3; i++) {
        float seen = i == 0 ? sun : 1.;
        d += light_colour[i].rgb * max(dot(n, light_direction[i].xyz), 0.) * seen;
        shine += light_colour[i].rgb * seen * gloss(n, s.v, light_direction[i].xyz, .25) * (1. + 4. * metal);
    }
    return frame_colour.rgb * d * (1. - metal * .7) + shine * mix(vec3(1.), frame_colour.rgb * 2., metal);
}
float streak(vec3 t, vec3 l, vec3 v, float shift, float power) {  // Kajiya and Kay (1989)
    float d = clamp(dot(t, normalize(l + v)) + shift, -1., 1.);
    return pow(max(1. - d * d, 0.), power * .5);
}
vec3 shade_strand(vec3 p, vec3 t, vec3 n, vec3 v, vec4 traits, float turn) {
    float along = traits.x, number = traits.y, open = traits.z, other = fract(number * 7.31);
    bool on_head = traits.w < .5, lash = traits.w > 2.5;
    if (lash) return under_hair.rgb * .12 * (sky(n) + .3 * light_colour[0].rgb);
    float grey = hair_a.x * (traits.w > .5 && traits.w < 1.5 ? .7 : 1.);
    vec3 colour = hair.rgb * mix(.7, 1.35, other) * mix(.8, 1.12, along) * (on_head ? 1. : 1.1);
    colour = mix(colour, vec3(.34, .33, .32) * (.7 + .5 * other), smoothstep(grey + .12, grey - .12, number + .02) * mix(.35, 1., grey));
    float sun = lit(p + n * .03, .006, turn);
    vec3 d = sky(n) * open, shine = vec3(0);
    for (int i = 0; i < 3; i++) {
        vec3 l = light_direction[i].xyz;
        float nl = clamp((dot(n, l) + .25) / 1.25, 0., 1.), tl = sqrt(max(0., 1. - pow(dot(t, l), 2.))), seen = i == 0 ? mix(.08, 1., sun) : 1.;
        d += light_colour[i].rgb * mix(tl * .8, 1., .4) * nl * seen * mix(open, 1., .2);
        float facing = smoothstep(-.2, .4, dot(n, l));
        shine += light_colour[i].rgb * seen * open * facing
            * (streak(t, l, v, -.12 + .12 * (number - .5), 90.) * .10 + colour * streak(t, l, v, .14 + .2 * (number - .5), 22.) * .9);
    }
    return colour * d * 1.1 + shine * hair_a.y * (on_head ? 1. : .4);
}
