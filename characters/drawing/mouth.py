"""The mouth: lips that meet in a line, part over a dark interior with teeth and tongue, round and widen."""

from __future__ import annotations

import torch
from torch import Tensor

from characters.drawing.scene import Scene
from characters.drawing.shapes import cover, ellipse, glow, smoothstep

YAW_SHIFT = 0.8  # pixels of extra parallax, as lips stand out from the face
DROP = 0.72  # share of the opening that the lower lip (the jaw) makes


def arch(x: Tensor, half_width: Tensor, power: Tensor | float) -> Tensor:
    """Profile of a lip or lid over its width: 1 in the middle, 0 at the corners."""
    return (1 - (x / half_width).square()).clamp(min=1e-4).pow(power)


def draw_mouth(scene: Scene, head: Tensor) -> None:
    """Paint the mouth; `head` is the coverage [N, h, w] of the head."""
    mouth, motion = scene.pose.mouth, scene.pose.motion
    opening, rounding = mouth["open"], mouth["round"]
    half = scene["mouth_width"] * (1 + 0.2 * mouth["wide"] - 0.48 * rounding + 0.05 * motion["smile"])
    height = scene["mouth_height"] * opening * (1 + 0.1 * rounding)
    smile = (scene["mouth_smile"] + 4.0 * motion["smile"] + 1.2 * mouth["wide"]) * (1 - 0.75 * rounding)
    x = scene.face_u - YAW_SHIFT * motion["yaw"]
    y = scene.face_v - scene["mouth_y"] + smile * ((x / scene["mouth_width"]).square() - 0.35)
    shape = 0.74 - 0.22 * rounding - 0.14 * opening * (1 - rounding)
    inner, slope = arch(x, half, shape), 1 + 0.35 * opening + 0.5 * rounding
    top, bottom = (1 - DROP) * height * inner, DROP * height * inner

    # lips: fuller when rounded, with a bow in the upper one
    full = 1 + 0.65 * rounding - 0.2 * mouth["wide"].clamp(min=0)
    reach = half + 2.5 + 1.2 * rounding
    outer = arch(x, reach, 0.88 - 0.2 * rounding)
    bow = 1 - 0.3 * torch.exp(-(x / 4.5).square()) * (1 - 0.5 * rounding)
    upper = -((1 - DROP) * height * outer + scene["lip_upper"] * full * outer * bow)
    lower = DROP * height * outer + scene["lip_lower"] * full * outer
    inside = torch.maximum(x.abs() - reach, torch.maximum(upper - y, y - lower) / slope)
    shadow = ellipse(x, y - DROP * height - scene["lip_lower"] * full - 4.5, half * 0.62, 3.0)
    scene.tint(scene["shade"], glow(shadow, 7.0) * head * scene["lip_shadow"])
    scene.paint(scene["lip"], cover(inside) * head)
    lower_lip = smoothstep(y - bottom, 0.0, 2.5) * cover(inside)
    scene.paint(scene["lip_light"], lower_lip * 0.75 * head)
    shine = ellipse(x + 3, y - bottom - scene["lip_lower"] * full * 0.45, half * 0.34, 1.3 * full)
    scene.paint(scene["lip_shine"], glow(shine, 3.0) * scene["lip_gloss"] * head)

    # interior, then what stands in it
    hole = torch.maximum(x.abs() - half, torch.maximum(-top - y, y - bottom) / slope)
    ajar = smoothstep(height, 0.6, 3.0)
    gap = cover(hole) * ajar * head
    scene.paint(scene["mouth_inner"], gap)
    lift = 0.25 + 0.75 * mouth["tongue"]
    tongue = ellipse(x, y - bottom.amax((1, 2), keepdim=True) - 1, half * 0.66, (3 + 0.62 * height) * lift)
    scene.paint(scene["tongue"], gap * cover(tongue, 2.0))
    teeth = y + top - (1.5 + 6.0 * mouth["teeth"]).clamp(max=7.5)
    scene.paint(scene["teeth"], gap * cover(teeth, 1.6) * cover(x.abs() - half * 0.9, 2.5))
    low = bottom - y - 4.5 * (mouth["teeth"] - 0.45).clamp(min=0) * (1 - 0.5 * mouth["tongue"])
    scene.paint(scene["teeth_low"], gap * cover(low, 1.6) * cover(x.abs() - half * 0.8, 2.5))
    scene.tint(scene["shade_deep"], gap * glow(-hole - 1.0, 3.0) * 0.5)

    # the closed line: present while the lips touch, and as corners when they part
    line = torch.maximum(y.abs() - 1.1 * (0.25 + 0.75 * arch(x, half, 0.5)), x.abs() - half - 0.5)
    scene.paint(scene["mouth_line"], cover(line) * (1 - ajar) * head)
    corner = ellipse(x.abs() - half - 0.6, y + 0.5, 2.0, 1.0)
    scene.paint(scene["mouth_line"], cover(corner, 1.8) * head * 0.5 * (1 - 0.6 * rounding))
