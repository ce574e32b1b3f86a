"""Head, ears, nose, muzzle and the marks on a face."""

from __future__ import annotations

import torch
from torch import Tensor

from characters.drawing.scene import Scene
from characters.drawing.shapes import (
    box,
    circle,
    cover,
    ellipse,
    glow,
    rotate,
    smooth_max,
    smooth_min,
    smoothstep,
    superellipse,
)

CHIN_DROP = 8.0  # pixels by which the chin falls when the mouth is fully open
FAR = 1e3  # added to the distance of a shape that an identity lacks


def head_distance(scene: Scene) -> Tensor:
    """Distance [N, h, w] to the outline of the head: round skull, tapered jaw that drops with the mouth."""
    u, v = scene.u, scene.v
    above = v < 0
    low = scene["face_low"] + CHIN_DROP * scene.pose.mouth["open"] * scene["jaw_drop"]
    level = torch.where(above, v / scene["face_height"], v / low)
    jaw = 1 - scene["jaw"] * level.clamp(0, 1).square()
    power = torch.where(above, scene["skull_power"], scene["chin_power"])
    skull = superellipse(u / jaw, level, scene["face_width"], 1.0, power, scene["face_width"] * 0.95)
    tuft = ellipse(u.abs() - scene["tuft_x"], v - scene["tuft_y"], scene["tuft_size"], scene["tuft_size"] * 0.75)
    return smooth_min(skull, tuft, 10.0)


def draw_ears(scene: Scene) -> None:
    """Paint human ears and earrings, or the ears of an animal or a robot; the head covers their roots."""
    u, v = scene.u + 1.5 * scene.pose.motion["yaw"], scene.v
    across = u.abs() - scene["ear_x"]
    x, y = rotate(across, v - scene["ear_y"], scene["ear_angle"])
    width, height = scene["ear_width"], scene["ear_height"]
    round_ear = ellipse(x, y, width, height)
    # a pointed ear is the overlap of two big circles, a lens standing on its tip
    bulge = (height * height - width * width) / (2 * width)
    lens = torch.sqrt((x.abs() + bulge).square() + y * y) - (bulge + width)
    plate = box(x, y, width, height, 4.0)
    kinds = (scene["ear_round"], scene["ear_pointed"], scene["ear_plate"])
    outer = torch.minimum(
        torch.minimum(round_ear + FAR * (1 - kinds[0]), lens + FAR * (1 - kinds[1])), plate + FAR * (1 - kinds[2])
    )
    on = scene["has_ears"]
    scene.paint(scene["ear"], cover(outer) * on)
    scene.paint(scene["ear_inner"], cover(outer + scene["ear_rim"], 2.0) * scene["has_ear_inner"] * on)
    ring = circle(across - 1.0, v - scene["ear_y"] - scene["ear_height"] - 3.0, scene["earring_size"])
    hoop = torch.lerp(ring, ring.abs() - 1.3, scene["earring_hoop"])
    scene.paint(scene["accent"], cover(hoop) * scene["has_earring"])


def draw_antenna(scene: Scene) -> None:
    """Paint a robot's antenna behind its head."""
    u = scene.u - 0.5 * scene.pose.motion["yaw"]
    top = -scene["face_height"] - scene["antenna"]
    rod = torch.maximum(u.abs() - 2.0, top - scene.v)
    rod = torch.maximum(rod, scene.v)
    scene.paint(scene["ear"], cover(rod) * scene["has_antenna"])
    scene.tint(scene["glow_tint"], glow(circle(u, scene.v - top, 7.0), 14.0) * scene["has_antenna"] * 0.5)
    scene.paint(scene["accent"], cover(circle(u, scene.v - top, 6.0)) * scene["has_antenna"])


def draw_head(scene: Scene, distance: Tensor, head: Tensor) -> None:
    """Paint the bare head with its shading; `head` is its coverage [N, h, w]."""
    u, v = scene.u, scene.v
    light = scene["light"]
    scene.paint(scene["skin"], head)
    # one big soft shadow on the far side and under the brow, one light on the near cheek
    side = ellipse(u + light * 20, v + 12, scene["face_width"] * 1.12, scene["face_low"] * 1.15)
    scene.tint(scene["shade"], (1 - glow(side, 34.0)) * head)
    lit = ellipse(u + light * 18, v + 34, 26.0, 20.0)
    scene.paint(scene["skin_light"], glow(lit, 40.0) * head * 0.5)
    rim = (1 - cover(distance + 2.2, 3.0)) * head * cover(u * light - 14, 30.0)
    scene.paint(scene["skin_light"], rim * scene["rim_light"])


def draw_marks(scene: Scene, head: Tensor) -> None:
    """Paint what marks a face: screen, blaze, muzzle and blush."""
    u, v = scene.face_u, scene.face_v
    grow = 2.5 * scene.pose.mouth["open"]  # a screen follows the jaw
    tall = scene["screen_height"]
    screen = box(u, v - scene["screen_y"] - grow, scene["screen_width"], tall + grow, scene["screen_corner"])
    on = head * scene["has_screen"]
    scene.paint(scene["screen_edge"], cover(screen - 2.5) * on)
    scene.paint(scene["screen"], cover(screen) * on)
    gleam = torch.maximum(screen + 4, (u + v * 0.6 + 30).abs() - 9.0)
    scene.paint(scene["skin_light"], cover(gleam, 2.0) * on * 0.10)
    blaze = torch.maximum(u.abs() - scene["blaze_width"] * (1.1 - v / 90).clamp(0.3, 2.0), v - 30)
    scene.paint(scene["muzzle"], cover(blaze, 2.5) * head * scene["has_blaze"])
    drop = 6.0 * scene.pose.mouth["open"]
    muzzle = ellipse(u, v - scene["muzzle_y"] - 0.5 * drop, scene["muzzle_width"], scene["muzzle_height"] + 0.6 * drop)
    cheeks = ellipse(u.abs() - scene["face_width"] * 0.72, v - 44, scene["face_width"] * 0.62, 26.0)
    cheeks = smooth_min(muzzle, cheeks + FAR * (1 - scene["has_cheek_fur"]), 8.0)
    scene.paint(scene["muzzle"], cover(cheeks, 2.0) * head * scene["has_muzzle"])
    blush = ellipse(u.abs() - scene["blush_x"], v - scene["blush_y"], 11.0, 8.0)
    scene.paint(scene["blush"], glow(blush, 13.0) * head * scene["blush_strength"])


def draw_nose(scene: Scene, head: Tensor) -> None:
    """Paint a soft human nose or an animal's nose with the line that runs down to the mouth."""
    yaw = scene.pose.motion["yaw"]
    u, v = scene.face_u - 2.2 * yaw, scene.face_v - 1.0 * scene.pose.motion["pitch"] - scene["nose_y"]
    width, length = scene["nose_width"], scene["nose_length"]
    human = head * scene["human_nose"]
    light = scene["light"]
    bridge = ellipse(u - light * width * 0.35, v + length * 0.55, width * 0.5, length * 0.62)
    scene.tint(scene["shade"], glow(bridge, 7.0) * human * 0.8)
    under = torch.maximum(ellipse(u, v + 0.5, width, 5.5), -(v - 1.0 - 0.05 * u.square() * 0.6))
    scene.tint(scene["shade_deep"], cover(under, 2.0) * human * 0.85)
    tip = ellipse(u + light * 1.5, v + 3.0, width * 0.42, 3.2)
    scene.paint(scene["skin_light"], glow(tip, 5.0) * human * 0.75)
    beast = head * scene["animal_nose"]
    taper = 1 - 0.35 * (v / 6.5).clamp(-0.3, 1)
    triangle = superellipse(u / taper, v, width, 6.5, 2.4, 6.5)
    philtrum = torch.maximum(u.abs() - 0.9, torch.maximum(-v, v + scene["nose_y"] - scene["mouth_y"]))
    scene.paint(scene["mouth_line"], cover(philtrum) * beast)
    scene.paint(scene["nose"], cover(triangle) * beast)
    scene.paint(torch.ones_like(scene["nose"]), glow(ellipse(u + 2.5, v + 2.8, 2.6, 1.5), 2.5) * beast * 0.45)


def draw_beard(scene: Scene, head: Tensor, distance: Tensor) -> None:
    """Paint a full beard along the jaw and a moustache, both under the mouth."""
    u, v = scene.face_u, scene.face_v
    open_ = scene.pose.mouth["open"]
    clear = ellipse(u, v - scene["mouth_y"] + 22 - 3 * open_, scene["face_width"] * 0.80, 34.0 + 2 * open_)
    beard = smooth_max(-clear, -(v + 8.0), 4.0)
    beard = torch.maximum(beard, distance - scene["beard_size"])
    fade = smoothstep(v, -8.0, 10.0)  # sideburns thin out
    scene.paint(scene["beard"], cover(beard, 2.0) * fade * scene["has_beard"])
    chin = ellipse(u, v - scene["mouth_y"] - 20 - 12 * open_, scene["goatee_width"], 10.0 + 2 * open_)
    scene.paint(scene["beard"], cover(chin, 2.0) * head * scene["has_goatee"])
    lift = 0.5 * (scene["mouth_y"] + scene["nose_y"]) + 1.0
    reach = scene["mouth_width"] * 0.95
    x = u.abs() - reach * 0.42
    hair = ellipse(x, v - lift - 0.012 * u.square() + 2.2 * open_, reach * 0.62, scene["moustache_size"])
    scene.paint(scene["beard"], cover(hair, 1.8) * head * scene["has_moustache"])
