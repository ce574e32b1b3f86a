"""The scene that every layer draws on: the image, its coordinates and the pose."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from characters.chunk import MOTION_CHANNELS, MOUTH_CHANNELS

HEIGHT, WIDTH = 272, 176
HEAD_Y = 124.0  # row of the head's centre in the neutral pose
NECK = 72.0  # the head turns about a point this far below its centre
SHIFT = 6.0  # pixels of head travel at x or y = 1
ROLL = math.radians(4)
SCALE = 0.03
YAW, PITCH = 7.0, 4.5  # pixels that the middle of the face travels at yaw or pitch = 1
YAW_RIM, PITCH_RIM = 2.0, 1.5  # the same for the outline of the head

Identities = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Pose:
    """Numbers of one frame, each [N, 1, 1] so that they broadcast over pixels; keys are the channel names."""

    motion: dict[str, Tensor]
    mouth: dict[str, Tensor]

    @classmethod
    def of(cls, motion: Tensor, mouth: Tensor) -> Pose:
        """From motion [N, 12] and mouth [N, 5]."""
        return cls(
            {name: motion[:, i, None, None] for i, name in enumerate(MOTION_CHANNELS)},
            {name: mouth[:, i, None, None] for i, name in enumerate(MOUTH_CHANNELS)},
        )


@dataclass(slots=True)
class Scene:
    """A window of the picture with its coordinate systems. Each layer replaces `image` with a painted one.

    Attributes:
        traits: who is drawn; read through `scene["name"]`, [N, 1, 1] for numbers and [N, 3, 1, 1] for colours.
        pose: motion and mouth of this frame.
        image: float32 [N, 3, h, w] in [0, 1].
        x, y: frame coordinates [1, h, w]; x from the vertical axis, y from the top.
        u, v: head coordinates [N, h, w], origin in the middle of the head.
        face_u, face_v: face coordinates [N, h, w]; they slide over the head with yaw and pitch.
    """

    traits: Identities
    pose: Pose
    image: Tensor
    x: Tensor
    y: Tensor
    u: Tensor
    v: Tensor
    face_u: Tensor
    face_v: Tensor

    def __getitem__(self, name: str) -> Tensor:
        value = self.traits[name]
        return value[:, None, None] if value.ndim == 1 else value[:, :, None, None]

    def window(self, top: int, bottom: int, left: int = 0, right: int = WIDTH) -> Scene:
        """The same scene restricted to a part of the picture: cheaper for small features. `paste` brings it back."""
        part = (slice(None), slice(top, bottom), slice(left, right))
        grids = (self.x.expand_as(self.u), self.y.expand_as(self.u), self.u, self.v, self.face_u, self.face_v)
        image = self.image[:, :, top:bottom, left:right]
        return Scene(self.traits, self.pose, image, *(grid[part] for grid in grids))

    def paste(self, part: Scene, top: int, bottom: int, left: int = 0, right: int = WIDTH) -> None:
        """Put the image of a window back into this one."""
        self.image[:, :, top:bottom, left:right] = part.image

    def paint(self, colour: Tensor, alpha: Tensor) -> None:
        """Lay `colour` [N, 3, 1, 1] or [N, 3, h, w] over the image where `alpha` [N, h, w] is 1."""
        self.image = torch.lerp(self.image, colour, alpha[:, None])

    def tint(self, factor: Tensor, alpha: Tensor) -> None:
        """Multiply the image by `factor` (like `paint`'s colour) where `alpha` is 1: shadows on any ground."""
        self.image = self.image * (1 + (factor - 1) * alpha[:, None])


def head_origin(pose: Pose, traits: Identities) -> tuple[Tensor, Tensor]:
    """Frame coordinates (x, y), each [N, 1, 1], of the point at the neck that the head turns about."""
    x = SHIFT * pose.motion["x"]
    y = HEAD_Y + NECK + traits["head_y"][:, None, None] + SHIFT * pose.motion["y"]
    return x, y


def new_scene(traits: Identities, motion: Tensor, mouth: Tensor) -> Scene:
    """An unpainted scene for N frames."""
    device, count = motion.device, motion.shape[0]
    pose = Pose.of(motion.float(), mouth.float())
    y, x = torch.meshgrid(
        torch.arange(HEIGHT, device=device, dtype=torch.float32) + 0.5,
        torch.arange(WIDTH, device=device, dtype=torch.float32) + 0.5 - WIDTH / 2,
        indexing="ij",
    )
    origin_x, origin_y = head_origin(pose, traits)
    dx, dy = x[None] - origin_x, y[None] - origin_y
    angle, size = ROLL * pose.motion["roll"], 1 + SCALE * pose.motion["scale"]
    cos, sin = torch.cos(angle) / size, torch.sin(angle) / size
    u, v = cos * dx + sin * dy, cos * dy - sin * dx + NECK
    width, height = traits["face_width"][:, None, None], traits["face_height"][:, None, None]
    # the middle of the face is nearest to the viewer, so it travels furthest
    depth = (1 - (u / width).square() * 0.7 - (v / height).square() * 0.2).clamp(0, 1)
    face_u = u - pose.motion["yaw"] * (YAW_RIM + (YAW - YAW_RIM) * depth)
    face_v = v - pose.motion["pitch"] * (PITCH_RIM + (PITCH - PITCH_RIM) * depth)
    image = torch.empty(count, 3, HEIGHT, WIDTH, device=device)
    return Scene(traits, pose, image, x[None], y[None], u, v, face_u, face_v)


def to_frame(pose: Pose, traits: Identities, face_u: Tensor, face_v: Tensor) -> Tensor:
    """Pixels [N, 2] = (x, y) of the face points (face_u, face_v), each [N]; columns and rows count from the corner."""
    width, height = traits["face_width"], traits["face_height"]
    motion = {name: value[:, 0, 0] for name, value in pose.motion.items()}
    depth = (1 - (face_u / width).square() * 0.7 - (face_v / height).square() * 0.2).clamp(0, 1)
    u = face_u + motion["yaw"] * (YAW_RIM + (YAW - YAW_RIM) * depth)
    v = face_v + motion["pitch"] * (PITCH_RIM + (PITCH - PITCH_RIM) * depth) - NECK
    angle, size = ROLL * motion["roll"], 1 + SCALE * motion["scale"]
    cos, sin = torch.cos(angle) * size, torch.sin(angle) * size
    origin_x, origin_y = (value[:, 0, 0] for value in head_origin(pose, traits))
    return torch.stack([origin_x + cos * u - sin * v + WIDTH / 2, origin_y + sin * u + cos * v], -1)
