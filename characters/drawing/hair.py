"""Hair as two layers of one outline: behind the head, and in front of it above a hairline; hats and scarves too."""

from __future__ import annotations

import torch
from torch import Tensor

from characters.drawing.scene import Scene
from characters.drawing.shapes import (
    box,
    cover,
    ellipse,
    glow,
    rotate,
    smooth_max,
    smooth_min,
    smoothstep,
    superellipse,
)


def outline(scene: Scene) -> Tensor:
    """Distance [N, h, w] to the silhouette of the hair, including curls, without bun or tail."""
    sway = scene.pose.motion["yaw"]
    v = scene.v
    u = scene.u + 0.6 * sway + 0.02 * (v.clamp(min=0)) * sway
    width = scene["face_width"] + scene["hair_side"]
    height = scene["face_height"] + scene["hair_top"]
    curls = scene["hair_curl"] * (torch.cos(torch.atan2(u, -v + 6) * scene["hair_lobes"]).abs() - 0.5)
    crown = superellipse(u, v, width, height, 2.15, width)
    lobe = 1 + scene["hair_flare"] * (v / 60).clamp(0, 2)
    fall = (u.abs() - width * lobe) * 0.97
    shape = torch.where(v < 0, crown, fall)
    quiff = ellipse(u - scene["quiff_x"], v + height - 14, 36.0, 14 + scene["quiff"])
    shape = smooth_min(shape, quiff, 22.0)
    return smooth_max(shape, v - scene["hair_length"], 18.0) - curls


def draw_back_hair(scene: Scene, shape: Tensor) -> None:
    """Paint the hair behind the head: the outline in a darker tone, and a bun, tail or pair of buns."""
    on = scene["has_hair"]
    across = torch.lerp(scene.u - scene["knot_x"], scene.u.abs() - scene["knot_x"], scene["knot_pair"])
    x, y = rotate(across, scene.v - scene["knot_y"], scene["knot_angle"] * torch.sign(scene["knot_x"]))
    knot = cover(ellipse(x, y, scene["knot_width"], scene["knot_height"])) * scene["has_knot"] * on
    scene.paint(scene["hair"], knot)
    light = scene["light"]
    lit = ellipse(x + light * 5, y + scene["knot_height"] * 0.2, scene["knot_width"] * 0.8, scene["knot_height"] * 0.8)
    scene.paint(scene["hair_dark"], (1 - glow(lit, 12.0)) * knot * 0.8)
    scene.paint(scene["hair_dark"], cover(shape) * on)


def hairline(scene: Scene) -> Tensor:
    """Distance [N, h, w] to the line where the hair ends on the forehead, high at the parting; negative in the hair."""
    u = scene.face_u - scene["hair_part"]
    reach = scene["face_width"] + scene["hair_part"] * torch.sign(-u)
    along = (u.abs() / reach).clamp(1e-3, 1.3)
    swept = scene["hair_sweep"] * 1.2 * along.square() / (along + 0.2)
    fall = scene["hair_drop"] * along.pow(scene["hair_power"])
    # where the line is steep, rows are not distances: divide by the length of the gradient
    slope = (fall * scene["hair_power"] / along + scene["hair_sweep"]) / reach
    return (scene.face_v - scene["hair_line"] - swept - fall) / torch.sqrt(1 + slope * slope)


def draw_front_hair(scene: Scene, shape: Tensor, head: Tensor) -> None:
    """Paint the hair on the forehead and temples, its soft shadow on the skin, and its shine."""
    on = scene["has_hair"]
    line = hairline(scene)
    scene.tint(scene["shade"], cover(line - 4.5, 5.0) * head * on)
    front = cover(smooth_max(shape, line, 4.0)) * on
    scene.paint(scene["hair"], front)
    light = scene["light"]
    low = ellipse(scene.u + light * 22, scene.v + 36, scene["face_width"] * 1.05, scene["face_height"] * 0.85)
    scene.paint(scene["hair_dark"], (1 - glow(low, 34.0)) * front * 0.75)
    # broad locks that fan out from the parting
    fan = torch.atan2(scene.face_u - scene["hair_part"], scene.v + scene["face_height"] + 18)
    locks = smoothstep(torch.cos(fan * 7), 0.1, 0.7)
    scene.paint(scene["hair_dark"], locks * front * scene["hair_locks"] * 0.35)
    arc = ellipse(
        scene.u + light * 10,
        scene.v - 6,
        scene["face_width"] * 0.86,
        scene["face_height"] * 0.86 + scene["hair_top"] * 0.6,
    )
    band = arc.abs() - 3.0
    shine = glow(band, 9.0) * glow(ellipse(scene.u + light * 26, scene.v + 58, 26.0, 40.0), 26.0)
    scene.paint(scene["hair_light"], shine * front * scene["hair_shine"])


def draw_hat(scene: Scene) -> None:
    """Paint a beanie: crown, folded brim and shading."""
    on = scene["has_hat"]
    width = scene["face_width"] + 6
    dome = superellipse(scene.u, scene.v + 8, width, scene["face_height"] + 12, 2.2, width)
    edge = scene.face_v - scene["hat_y"] + 0.004 * scene.face_u.square()
    scene.tint(scene["shade"], glow(torch.maximum(edge - 6, dome + 7), 9.0) * on)
    scene.paint(scene["hat"], cover(torch.maximum(dome, edge)) * on)
    light = ellipse(scene.u + 20 * scene["light"], scene.v + 66, 26.0, 14.0)
    scene.paint(scene["hat_light"], glow(light, 26.0) * cover(torch.maximum(dome, edge)) * on * 0.6)
    brim = smooth_max(dome - 1.5, (edge + 8.0).abs() - 9.0, 5.0)
    scene.paint(scene["hat_dark"], cover(brim) * on)


def draw_headphones(scene: Scene) -> None:
    """Paint a band over the crown and two cups on the ears."""
    on = scene["has_headphones"]
    height = scene["face_height"] + scene["hair_top"] + 1
    arc = superellipse(scene.u, scene.v, scene["face_width"] + 8, height, 2.2, scene["face_width"])
    band = torch.maximum((arc - 2.5).abs() - 3.2, scene.v + 6)
    scene.paint(scene["headphones"], cover(band) * on)
    x, y = scene.u.abs() - scene["face_width"] - 6, scene.v - 6
    scene.paint(scene["headphones"], cover(box(x, y, 9.0, 20.0, 8.0)) * on)
    scene.paint(scene["accent"], cover(box(x - 2.5, y, 5.0, 14.0, 5.0)) * on)
