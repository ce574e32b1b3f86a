"""Puts the layers of a character on top of each other."""

from __future__ import annotations

import torch
from torch import Tensor

from characters.drawing import body, eyes, hair, head
from characters.drawing.mouth import YAW_SHIFT, draw_mouth
from characters.drawing.scene import Identities, Pose, Scene, new_scene, to_frame

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
    """`render` for one batch, as a pure function of tensors: the one to hand to torch.compile."""
    scene = new_scene(identities, motion, mouth)
    hair_shape, head_shape = hair.outline(scene), head.head_distance(scene)
    body.draw_background(scene)
    head.draw_antenna(scene)
    hair.draw_back_hair(scene, hair_shape)
    body.draw_body(scene.rows(110, 272))
    head.draw_ears(scene)
    coverage = head.draw_head(scene, head_shape)

    def band(top: int, bottom: int) -> tuple[Scene, Tensor]:
        return scene.rows(top, bottom), coverage[:, top:bottom]

    head.draw_marks(*band(30, 215))
    low, low_head = band(120, 215)
    head.draw_beard(low, low_head, head_shape[:, 120:215])
    draw_mouth(low, low_head)
    head.draw_nose(*band(100, 190))
    middle, middle_head = band(70, 170)
    eyes.draw_eyes(middle, middle_head)
    hair.draw_front_hair(scene, hair_shape, coverage)
    eyes.draw_brows(middle, middle_head)
    eyes.draw_glasses(middle, middle_head)
    top = scene.rows(0, 130)
    hair.draw_headphones(scene.rows(20, 170))
    hair.draw_hat(top, hair_shape[:, :130])
    return scene.image.clamp_(0, 1)


def mouth_centre(identities: Identities, motion: Tensor) -> Tensor:
    """Pixel (x, y) of the middle of the closed mouth: float32 [N, 2]."""
    pose = Pose.of(motion.float(), motion.new_zeros(motion.shape[0], 5).float())
    return to_frame(pose, identities, YAW_SHIFT * pose.motion["yaw"][:, 0, 0], identities["mouth_y"])


def eye_centre(identities: Identities, motion: Tensor) -> Tensor:
    """Pixel (x, y) midway between the eyes: float32 [N, 2]."""
    pose = Pose.of(motion.float(), motion.new_zeros(motion.shape[0], 5).float())
    return to_frame(pose, identities, torch.zeros_like(identities["eye_y"]), identities["eye_y"])
