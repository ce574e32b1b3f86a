"""Neck, shoulders and clothes."""

from __future__ import annotations

import torch

from characters.drawing.scene import HEAD_Y, SHIFT, Scene
from characters.drawing.shapes import cover, ellipse, glow, polygon, smooth_max


def draw_body(scene: Scene) -> None:
    """Paint neck, shoulders and one of the kinds of clothes."""
    motion = scene.pose.motion
    light = scene["light"]
    x = scene.x - 0.4 * SHIFT * motion["x"]
    y = scene.y + 1.8 * motion["breath"] - scene["shoulder_y"] - 0.35 * SHIFT * motion["y"]
    neck_x = scene.x - 0.65 * SHIFT * motion["x"]
    wide = scene["neck_width"]
    hood = ellipse(x, y - 4, scene["hood_width"], 26.0)
    scene.paint(scene["cloth_dark"], cover(hood) * scene["has_hood"])
    w = scene["shoulder_width"] + 0.8 * motion["breath"]
    ridge = 17 * (x / w).square() - 12 * torch.exp(-(x / (wide + 8)).square())
    cloth = cover(smooth_max(ridge - y, x.abs() - w, 44.0))
    scene.paint(scene["cloth"], cloth)
    fold = ellipse(x + light * 26, y - 60, w * 0.9, 74.0)
    scene.paint(scene["cloth_dark"], (1 - glow(fold, 30.0)) * cloth * 0.7)
    gleam = ellipse(x + light * w * 0.55, y - 16, 20.0, 9.0)
    scene.paint(scene["cloth_light"], glow(gleam, 22.0) * cloth * 0.5)

    band = (y - scene["band_y"] - 6 * (x / w).square()).abs() - scene["band_height"]
    scene.paint(scene["accent"], cover(band) * cloth * scene["has_band"] * 0.85)

    # neckline: a rim of another tone, then skin (or a shirt) that joins the neck
    scoop = ellipse(x, y - scene["collar_y"], wide + scene["collar_width"], scene["collar_depth"])
    depth = scene["v_depth"]
    wedge = polygon(x.abs(), y, (-9.0, -14.0), (wide + 5, -14.0), (0.0, depth), (-9.0, depth))
    neckline = torch.lerp(scoop, wedge, scene["has_v"])
    scene.paint(scene["collar"], cover(neckline - 4.5) * cover(ridge - y) * scene["has_rim"] * cloth)
    bare = cover(torch.maximum(neckline, ridge - y - 1)) * scene["bare"]
    scene.paint(torch.lerp(scene["shirt"], scene["neck"], scene["bare_skin"][:, None]), bare)
    flare = 0.012 * (y + 18).clamp(min=0).square()
    column = torch.maximum(neck_x.abs() - wide - flare, HEAD_Y - scene.y)
    column = cover(smooth_max(column, y - 5, 6.0))
    scene.paint(scene["neck"], column)
    # shadow that the chin throws on the neck
    chin = ellipse(scene.u - 3 * light, scene.v - scene["face_low"] + 7, wide * 1.6, 21.0)
    scene.tint(scene["shade_deep"], cover(chin, 4.0) * torch.maximum(column, bare) * 0.85)

    # suit: tie and lapels; shirt: flaps of the collar
    tie = torch.maximum(x.abs() - 4.5 - 0.06 * y.clamp(min=0), -(y - 10))
    scene.paint(scene["accent"], cover(tie) * scene["has_tie"])
    lapel = torch.maximum(wedge - 11, -wedge)
    notch = 1.0 - (x.abs() * 0.5 + y - 30).abs()
    scene.paint(scene["cloth_light"], cover(torch.maximum(lapel, notch)) * cloth * scene["has_lapel"])
    flap = polygon(x.abs(), y, (1.0, 5.0), (wide * 0.75, -10.0), (wide + 5, -15.0), (wide * 0.8 + 6, 17.0))
    scene.tint(scene["shade_deep"], cover(flap - 2.5, 3.0) * cloth * scene["has_flaps"])
    scene.paint(scene["shirt"], cover(flap) * scene["has_flaps"])

    # turtleneck: a folded tube around the neck
    roll = smooth_max(neck_x.abs() - wide - 3.5 - 0.5 * flare, (y + 1).abs() - scene["roll_height"], 9.0)
    scene.tint(scene["shade_deep"], cover(roll - 3, 4.0) * cloth * scene["has_roll"])
    rolled = cover(roll) * scene["has_roll"]
    scene.paint(scene["collar"], rolled)
    fold = smooth_max(roll + 0.5, 3 - y, 4.0)
    scene.paint(scene["shirt"], cover(fold) * rolled * 0.3)
    scene.tint(scene["shade_deep"], cover(chin + 4, 4.0) * rolled * 0.6)

    # front of a hood
    outer = ellipse(x, y - 5, scene["hood_width"] * 0.98, 28.0)
    inner = ellipse(x, y + 5, scene["hood_width"] * 0.56, 26.0)
    front = torch.maximum(smooth_max(outer, -inner, 5.0), -2 - y)
    scene.tint(scene["shade_deep"], cover(front - 3, 4.0) * cloth * (1 - bare) * scene["has_hood"])
    scene.paint(scene["cloth_light"], cover(front) * scene["has_hood"])
