// What lies on the skin at a place c of the base person. s: the same with its sides folded together.
struct Surface { vec3 p, c, local, n, v; vec4 traits; float scalp, ao, turn, pixel; };

float folds(vec3 c, vec3 s, float lips) {
    vec3 w = c + .03 * vec3(fbm(c * 3. + skin_a.x), fbm(c * 3.3 + skin_a.x + 5.), fbm(c * 2.7 + skin_a.x + 9.));
    float old = smoothstep(.25, 1., skin_a.y);
    float brow = bump(s, vec3(0, 7.72, 1.45), vec3(.55, .22, .5)) * sin(w.y * 58. + 3. * fbm(vec3(c.x * 2., c.y * 9., skin_a.x)));
    vec2 d = s.xy - vec2(.44, 7.28);
    float corner = bump(s, vec3(.62, 7.26, 1.05), vec3(.16, .16, .4)) * sin(atan(d.y, d.x) * 11. + 3. * fbm(c * 5. + skin_a.x));
    float bag = bump(s, vec3(.33, 7.08, 1.35), vec3(.22, .08, .3)) * sin((w.y + .25 * s.x * s.x) * 85.);
    float neck = bump(s, vec3(0, 5.75, .6), vec3(.9, .25, .6)) * sin(w.y * 26. + 2. * c.x * c.x);
    float frown = bump(s, vec3(.05, 7.48, 1.5), vec3(.05, .09, .3)) * sin(s.x * 70.);
    // from the wings of the nose to the corners of the mouth
    float line = s.x - (.205 + .34 * (6.93 - c.y) - .25 * (6.93 - c.y) * (6.93 - c.y));
    float cheek = smoothstep(6.45, 6.62, c.y) * smoothstep(6.98, 6.88, c.y) * smoothstep(.9, 1.2, c.z);
    float laugh = -exp(-line * line / .0011) * cheek;
    return .0075 * ((old + .8 * wrinkle.x) * brow * .8 + (old + .7 * wrinkle.y) * corner * .7 + old * (.4 * bag + .5 * neck)
        + (.7 * old + wrinkle.w) * frown * .7) * (1. - lips) + .016 * (.55 * old + .7 * wrinkle.z) * laugh * (1. - lips);
}
float relief(vec3 c, float lips, float fine) {
    vec3 s = vec3(abs(c.x), c.yz);
    float pores = noise(c * 58. + skin_a.x) * .5 + noise(c * 110. + skin_a.x) * .5;
    float h = pores * .0021 * skin_c.y * fine + (fbm(c * 9. + skin_a.x) - .4) * .0045 * (.15 + skin_a.y);
    h += folds(c, s, lips);
    h += lips * sin(c.x * 150. + 4. * fbm(c * 20.)) * .0008;
    return h;
}
vec3 albedo(vec3 c, vec4 traits, float lips, float scalp_here, float fine, float inner) {
    vec3 s = vec3(abs(c.x), c.yz);
    float seed = skin_a.x, old = skin_a.y;
    float blotch = fbm(c * 2.2 + seed) - .47, grain = fbm(c * 12. + seed * 2.) - .47;
    float pores = noise(c * 58. + seed);
    float blood = skin_a.z * (.9 * bump(s, vec3(.52, 6.88, 1.2), vec3(.3, .26, .4)) + .8 * bump(s, vec3(0, 6.93, 1.65), vec3(.16, .14, .25))
        + .5 * bump(s, vec3(0, 6.3, 1.5), vec3(.2, .12, .3)) + .7 * traits.y + .35 * traits.z + .35 * wrinkle.z * bump(s, vec3(.5, 6.9, 1.2), vec3(.25, .2, .4)));
    blood += skin_a.z * blotch * .9 + .15 * grain;
    vec3 a = tone.rgb * exp(-blood * vec3(.04, .27, .22));
    a *= exp(-(blotch * .55 + grain * .75 + .3 * (pores - .5) * fine + .35 * (fbm(c * 28. + seed * 5.) - .47)) * vec3(.28, .42, .48));
    float socket = bump(s, vec3(.31, 7.22, 1.35), vec3(.26, .17, .25));
    a *= exp(-socket * vec3(.22, .30, .24) * (.45 + .7 * old));
    float freckle = smoothstep(.66, .78, noise(c * 34. + seed * 3.)) * smoothstep(.35, .7, noise(c * 7. + seed));
    a *= exp(-skin_a.w * freckle * (bump(s, vec3(.3, 6.98, 1.3), vec3(.5, .3, .5)) + .25) * vec3(.45, .8, 1.));
    a *= exp(-smoothstep(.965, .985, noise(c * 19. + seed * 7.)) * vec3(.45, .65, .75));  // moles
    a *= exp(-smoothstep(.66, .76, noise(c * 11. + seed * 4.)) * smoothstep(.5, 1., old) * .3 * vec3(.2, .35, .45));
    float jawline = smoothstep(7., 6.75, c.y - .25 * smoothstep(.5, .75, s.x)) * smoothstep(5.95, 6.25, c.y) * smoothstep(.15, .45, c.z)
        * (1. - bump(s, vec3(.42, 6.85, 1.4), vec3(.2, .16, .5))) * (1. - lips);
    jawline *= 1. - .7 * bump(s, vec3(0, 6.46, 1.5), vec3(.28, .04, .4));
    a *= exp(-skin_b.y * jawline * (.55 + .9 * step(.5, noise(c * vec3(70., 55., 70.)))) * vec3(.75, .62, .5));
    a = mix(a, under_hair.rgb * .55 + tone.rgb * .05, scalp_here * scalp_here * skin_b.w * (.7 + .6 * noise(c * vec3(60.))));
    a = mix(a, a * vec3(.45, .38, .42), skin_b.z * bump(s, vec3(.32, 7.38, 1.4), vec3(.22, .07, .25)));
    return mix(a, lip.rgb * (.82 + .5 * fbm(c * vec3(40., 10., 10.))), lips * .85 * (1. - inner));
}
vec3 wrapped(vec3 n, vec3 l) {  // light creeps round edges of skin, red furthest
    float d = dot(n, l);
    vec3 w = vec3(.36, .17, .10), x = clamp((vec3(d) + w) / (1. + w), 0., 1.);
    return mix(x, pow(x, vec3(1.2)), .5);
}
vec3 shade_skin(Surface s) {
    vec3 c = s.c, n = s.n, v = s.v, side = vec3(abs(c.x), c.yz);
    float inner = smoothstep(.3, .7, s.traits.w);
    float lips = smoothstep(.30, .70, s.traits.x) * (1. - inner), ao = s.ao;
    float fine = smoothstep(.022, .006, s.pixel);
    if (inner < .9) {
        vec3 a = normalize(cross(n, abs(n.y) < .9 ? vec3(0, 1, 0) : vec3(1, 0, 0))), b = cross(n, a);
        mat3 back = transpose(mat3(head));
        float e = max(s.pixel, .003), h = relief(c, lips, fine);
        float da = (relief(c + e * (back * a), lips, fine) - h) / e, db = (relief(c + e * (back * b), lips, fine) - h) / e;
        n = normalize(n - (1. - inner) * (a * da + b * db));
    }
    vec3 alb = albedo(c, s.traits, lips, s.scalp, fine, inner);
    float deep = smoothstep(skin_c.x - .55, skin_c.x - .02, s.local.z);
    vec3 flesh = mix(vec3(.16, .035, .03), lip.rgb * .8, smoothstep(skin_c.x - .14, skin_c.x, s.local.z));
    float flesh_ao = .015 + .5 * deep * deep * deep * clamp(.25 + mouth.x, 0., 1.);
    alb = mix(alb, flesh, inner);
    ao = mix(ao, flesh_ao, inner);
    float sun = lit(s.p + s.n * .012, .0035, s.turn);
    vec3 diffuse = sky(n) * ao * mix(vec3(1.), alb + .35, .35);
    diffuse += wrapped(n, light_direction[0].xyz) * light_colour[0].rgb * pow(vec3(sun), vec3(.7, 1.1, 1.2)) * mix(1., ao, .35);
    for (int i = 1; i < 3; i++) diffuse += wrapped(n, light_direction[i].xyz) * light_colour[i].rgb * ao;
    // Light from behind shines through the rims of ears.
    diffuse += s.traits.y * .6 * max(dot(-s.n, light_direction[2].xyz), 0.) * light_colour[2].rgb * vec3(1., .3, .18);
    diffuse = mix(diffuse, (sky(vec3(0, 0, 1)) + light_colour[0].rgb * .25 * sun) * ao, inner);
    float zone = .35 + .65 * (bump(side, vec3(0, 7.7, 1.5), vec3(.5, .3, .5)) + bump(side, vec3(0, 7., 1.6), vec3(.15, .35, .4))
        + .6 * bump(side, vec3(.5, 7., 1.2), vec3(.25, .15, .4)));
    float pores = noise(c * 58. + skin_a.x);
    float rough = mix(.58, .46, zone * skin_b.x) - .05 * pores * fine, k = mix(.6, 1.05, zone) * skin_b.x * (.7 + .5 * pores * fine);
    rough = mix(rough, mix(.42, .24, skin_c.z), lips);
    k = mix(k, 1.1 + 1.5 * skin_c.z, lips);
    rough = mix(rough, .3, inner); k = mix(k, ao, inner);
    vec3 shine = light_colour[0].rgb * sun * (gloss(n, v, light_direction[0].xyz, rough) * .75 + gloss(n, v, light_direction[0].xyz, rough * .55) * .2);
    for (int i = 1; i < 3; i++) shine += light_colour[i].rgb * gloss(n, v, light_direction[i].xyz, rough) * ao;
    float rim = .03 + .45 * pow(1. - max(dot(n, v), 0.), 4.);
    shine += sky(reflect(-v, n)) * rim * .5 * ao;
    return alb * diffuse + shine * k * ao;
}
