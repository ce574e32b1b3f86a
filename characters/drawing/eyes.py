"""Eyes, lids and brows."""

from __future__ import annotations

import torch
from torch import Tensor

from characters.drawing.mouth import arch
from characters.drawing.scene import Scene
from characters.drawing.shapes import circle, cover, ellipse, glow, smoothstep

GAZE_X, GAZE_Y = 5.5, 3.8  # pixels that the iris travels at gaze = 1


def draw_eyes(scene: Scene, head: Tensor) -> None:
    """Paint both eyes; they share one drawing, mirrored at the middle of the face."""
    motion = scene.pose.motion
    side = torch.where(scene.face_u < 0, -1.0, 1.0)
    x = scene.face_u.abs() - scene["eye_x"]
    width, up, low = scene["eye_width"], scene["eye_up"], scene["eye_low"]
    y = scene.face_v - scene["eye_y"] + scene["eye_slant"] * x
    blink = motion["blink"].clamp(0, 1)
    squint = 0.25 * motion["smile"].clamp(min=0)
    shape = scene["eye_shape"]
    curve = arch(x, width, shape)
    # both lids meet a little below the middle; the upper one moves most and follows the gaze
    lid = up * (1 - 0.2 * motion["gaze_y"].clamp(-0.6, 1)) * scene["eye_open"]
    meet = 0.45 * low
    upper = torch.lerp(-lid * curve, meet * curve, blink)
    lower = torch.lerp(low * (1 - squint) * curve, meet * curve, blink)
    slope = torch.sqrt(1 + (0.8 * up * x / (width * width) / curve.clamp(min=0.25)).square())
    opening = torch.maximum(torch.maximum(upper - y, y - lower) / slope, x.abs() - width)
    ajar = smoothstep(1 - blink, 0.02, 0.2)
    ball = cover(opening) * ajar * head

    socket = ellipse(x, y + 1, width * 1.25, up * 1.35)
    scene.tint(scene["shade"], glow(socket, 8.0) * head * scene["eye_socket"])
    patch = ellipse(x - 3, y - 3 - x * 0.5, width * 1.55, (up + low) * 0.95)
    scene.paint(scene["patch"], cover(patch, 2.5) * head * scene["has_patch"])
    scene.paint(scene["eye_white"], ball)

    size = scene["iris_size"]
    ix, iy = x - side * GAZE_X * motion["gaze_x"] + scene["eye_cross"], y - GAZE_Y * motion["gaze_y"] + 0.3
    distance = circle(ix, iy, size)
    shading = (0.5 + 0.5 * iy / size).clamp(0, 1)[:, None]
    scene.paint(scene["iris_dark"], cover(distance) * ball)
    scene.paint(torch.lerp(scene["iris"], scene["iris_light"], shading), cover(distance + 1.3, 1.6) * ball)
    scene.paint(scene["pupil"], cover(distance + size * (1 - scene["pupil_size"]), 1.6) * ball)
    scene.tint(scene["shade_deep"], glow(y - upper - 2.5, 5.0) * ball * scene["eye_lid_shadow"])
    sx = x * side  # highlights sit on the same side in both eyes
    gx = sx - GAZE_X * motion["gaze_x"] + scene["eye_cross"] * side
    scene.paint(torch.ones_like(scene["iris"]), cover(circle(gx + size * 0.35, iy + size * 0.38, size * 0.3)) * ball)
    spark = circle(gx - size * 0.38, iy - size * 0.42, size * 0.15)
    scene.paint(torch.ones_like(scene["iris"]), cover(spark) * ball * 0.7)

    # lashes: a crescent between the lid and a wider arch that leans outwards
    edge = torch.lerp(-lid, meet, blink)
    lean = 0.5 + scene["lash"]
    crown = edge * arch(x - 0.5 * lean, width + 0.8 + 0.5 * lean, shape) - scene["lash_line"] * curve.sqrt()
    crown = crown - 0.8 * scene["lash"] * smoothstep(x / width, 0.2, 1.2)
    line = torch.maximum(crown - y, y - upper - 0.7) / slope.clamp(max=2.5)
    line = torch.maximum(line, torch.maximum(x - width - lean, -x - width - 0.8))
    scene.paint(scene["lash_colour"], cover(line) * head)
    edge = edge * curve
    crease = (y - edge + scene["eye_crease"] * (1 - 0.6 * blink)).abs() - 0.55
    crease = torch.maximum(crease / slope.clamp(max=2.0), x.abs() - width * 0.85)
    scene.tint(scene["shade_deep"], cover(crease, 1.8) * head * scene["has_crease"])
    under = torch.maximum((y - lower - 0.6).abs() - 0.4, x.abs() - width * 0.8)
    scene.tint(scene["shade_deep"], cover(under, 1.8) * head * 0.45 * ajar)


def draw_brows(scene: Scene, head: Tensor) -> None:
    """Paint both brows, thick inside and tapering outwards."""
    motion = scene.pose.motion
    x = scene.face_u.abs() - scene["eye_x"] - 1.0
    lift = scene["brow_y"] + 4.2 * motion["brow"] - 1.2 * motion["blink"]
    length = scene["brow_length"]
    along = (x / length).clamp(-1.2, 1.2)
    bend = scene["brow_arch"] * (1 - along * along) + scene["brow_slant"] * along - 1.2 * motion["brow"] * along
    y = scene.face_v - scene["eye_y"] + lift + bend
    thick = scene["brow_thick"] * (0.78 - 0.34 * along)
    distance = torch.sqrt((x.abs() - length).clamp(min=0).square() + y * y + 1e-6) - thick
    scene.paint(scene["brow_colour"], cover(distance) * head * scene["has_brow"])


def draw_glasses(scene: Scene) -> None:
    """Paint rims, bridge and temples of a pair of glasses with a faint reflection."""
    width = scene["eye_x"] - scene["glasses_gap"]
    x, y = scene.face_u.abs() - scene["eye_x"] - 0.5, scene.face_v - scene["eye_y"] - 1.0
    power = scene["glasses_power"]
    level = (x / width).abs().clamp(min=1e-3).pow(power) + (y / scene["glasses_height"]).abs().clamp(min=1e-3).pow(
        power
    )
    rim = (level.pow(1 / power) - 1) * scene["glasses_height"]
    on = scene["has_glasses"]
    scene.paint(torch.ones_like(scene["glasses"]), cover(rim) * 0.1 * on)
    glint = (x + y * 0.7 + 6).abs() - 2.5
    scene.paint(torch.ones_like(scene["glasses"]), cover(torch.maximum(glint, rim + 3), 2.0) * 0.13 * on)
    bridge = torch.maximum(
        (y + 2.0 - scene.face_u.square() * 0.02).abs() - 1.1, scene.face_u.abs() - scene["glasses_gap"] - 0.5
    )
    temple = torch.maximum(
        (y + 3).abs() - 1.2,
        torch.maximum(scene["eye_x"] + width - scene.face_u.abs(), scene.u.abs() - scene["face_width"] - 1),
    )
    frame = torch.minimum(torch.minimum(rim.abs() - 1.6, bridge), temple)
    scene.paint(scene["glasses"], cover(frame) * on)
