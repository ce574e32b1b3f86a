"""What stands behind a character."""

from __future__ import annotations

import torch

from characters.drawing.scene import Scene
from characters.drawing.shapes import circle, cover, glow


def draw_background(scene: Scene) -> None:
    """Fill the picture: a soft gradient, a large disc behind the head and a light from one corner."""
    angle = scene["ground_angle"]
    ramp = ((torch.cos(angle) * scene.x + torch.sin(angle) * (scene.y - 136)) / 260 + 0.5).clamp(0, 1)
    scene.image = torch.lerp(scene["ground"], scene["ground_low"], ramp[:, None])
    disc = circle(scene.x - scene["disc_x"], scene.y - scene["disc_y"], scene["disc_size"])
    scene.paint(scene["disc"], cover(disc, 1.5) * scene["has_disc"])
    halo = circle(scene.x + 60 * scene["light"], scene.y - 40, 40.0)
    scene.paint(scene["disc"], glow(halo, 170.0) * 0.45)
    hill = scene.y - scene["hill_y"] - 0.22 * scene["hill_tilt"] * scene.x + 0.0015 * scene.x.square()
    scene.paint(scene["ground_low"], cover(-hill, 2.0) * scene["has_hill"] * 0.6)
