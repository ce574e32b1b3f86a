"""Draws the layers of a character on top of each other."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from characters.drawing import body, eyes, hair, head
from characters.drawing.background import draw_background
from characters.drawing.mouth import YAW_SHIFT, draw_mouth
from characters.drawing.scene import Identities, Pose, new_scene, to_frame
from characters.drawing.shapes import cover

CPU_BATCH = 8  # frames drawn at once on a CPU, so that a layer stays in the cache


def render(identities: Identities, motion: Tensor, mouth: Tensor) -> Tensor:
    """Draw one frame per row.

    Args:
        identities: traits, N rows.
        motion: [N, 12] in the order of MOTION_CHANNELS.
        mouth: [N, 5] in the order of MOUTH_CHANNELS.

    Returns:
        float32 [N, 3, 272, 176], RGB in [0, 1].
    """
    with torch.no_grad():
        count = motion.shape[0]
        if motion.device.type != "cpu" or count <= CPU_BATCH:
            return draw(identities, motion, mouth)
        parts = []
        for start in range(0, count, CPU_BATCH):
            rows = slice(start, start + CPU_BATCH)
            parts.append(draw({k: v[rows] for k, v in identities.items()}, motion[rows], mouth[rows]))
        return torch.cat(parts)


def draw(identities: Identities, motion: Tensor, mouth: Tensor) -> Tensor:
    """`render` for one batch, as a pure function of tensors, fit for torch.compile."""
    scene = new_scene(identities, motion, mouth)
    hair_shape, head_shape = hair.outline(scene), head.head_distance(scene)
    coverage = cover(head_shape)

    def within(window: tuple[int, ...], layer: Callable[..., None], *masks: Tensor) -> None:
        """Draw a layer in its part of the picture (top, bottom, left, right)."""
        top, bottom, left, right = window
        part = scene.window(*window)
        layer(part, *(mask[:, top:bottom, left:right] for mask in masks))
        scene.paste(part, *window)

    draw_background(scene)
    within((0, 130, 50, 126), head.draw_antenna)
    hair.draw_back_hair(scene, hair_shape)
    within((110, 272, 0, 176), body.draw_body)
    within((0, 200, 0, 176), head.draw_ears)
    head.draw_head(scene, head_shape, coverage)
    within((30, 215, 0, 176), head.draw_marks, coverage)
    within((90, 220, 16, 160), head.draw_beard, coverage, head_shape)
    within((130, 215, 26, 150), draw_mouth, coverage)
    within((105, 185, 44, 132), head.draw_nose, coverage)
    within((80, 160, 16, 160), eyes.draw_eyes, coverage)
    hair.draw_front_hair(scene, hair_shape, coverage)
    within((65, 150, 16, 160), eyes.draw_brows, coverage)
    within((85, 165, 0, 176), eyes.draw_glasses)
    within((20, 170, 0, 176), hair.draw_headphones)
    within((0, 130, 0, 176), hair.draw_hat)
    return scene.image.clamp(0, 1)


def mouth_centre(identities: Identities, motion: Tensor) -> Tensor:
    """Pixel (x, y) of the middle of the closed mouth: float32 [N, 2]."""
    pose = Pose.of(motion.float(), motion.new_zeros(motion.shape[0], 5).float())
    return to_frame(pose, identities, YAW_SHIFT * pose.motion["yaw"][:, 0, 0], identities["mouth_y"])


def eye_centre(identities: Identities, motion: Tensor) -> Tensor:
    """Pixel (x, y) midway between the eyes: float32 [N, 2]."""
    pose = Pose.of(motion.float(), motion.new_zeros(motion.shape[0], 5).float())
    return to_frame(pose, identities, torch.zeros_like(identities["eye_y"]), identities["eye_y"])
