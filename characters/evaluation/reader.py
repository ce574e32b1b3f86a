"""Reads mouth, motion and identity off single frames, so that generated video can be measured.

The network first finds the mouth and the eyes on a coarse map, then looks at both at full resolution. An opening of one
pixel is a twentieth of the whole range, and a pooled map of the frame would lose it.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from characters.chunk import MOTION_CHANNELS, MOUTH_CHANNELS
from characters.drawing import HEIGHT, WIDTH, identity_vector, sample_identities
from characters.model.checkpoint import load_weights

# Windows (height, width) in pixels, and their distance below the centre: jaws open downwards, brows are above the eyes.
MOUTH_WINDOW, MOUTH_DROP = (56, 80), 4.0
EYE_WINDOW, EYE_DROP = (56, 104), -6.0

LOCAL_CHANNELS = 8  # kept of each cell of 8x8 pixels in a window


class Reading(NamedTuple):
    """What a frame shows.

    Attributes:
        mouth: [batch, 5], MOUTH_CHANNELS.
        motion: [batch, 12], MOTION_CHANNELS.
        identity: [batch, traits], `identity_vector` with zero mean and unit variance over the training identities.
        mouth_xy, eye_xy: [batch, 2], pixels, the middle of the mouth and the middle between the eyes.
    """

    mouth: Tensor
    motion: Tensor
    identity: Tensor
    mouth_xy: Tensor
    eye_xy: Tensor


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(8, channels)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        nn.init.zeros_(self.conv2.weight)
        nn.init.zeros_(self.conv2.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv2(F.silu(self.conv1(self.norm(x))))


class Window(nn.Module):
    """A window of the frame, [batch, 3, height, width] -> [batch, out]. It keeps the places of things in the window."""

    def __init__(self, size: tuple[int, int], out: int) -> None:
        super().__init__()
        height, width = size
        self.convolutions = nn.Sequential(
            nn.PixelUnshuffle(4),
            nn.Conv2d(48, 32, 3, padding=1),
            nn.SiLU(),
            Residual(32),
            nn.Conv2d(32, 48, 3, stride=2, padding=1),
            Residual(48),
            nn.SiLU(),
            nn.Conv2d(48, LOCAL_CHANNELS, 1),
        )
        self.out = nn.Linear(LOCAL_CHANNELS * -(-height // 8) * -(-width // 8), out)

    def forward(self, window: Tensor) -> Tensor:
        return F.silu(self.out(self.convolutions(window * 2 - 1).flatten(1)))


class FrameReader(nn.Module):
    """One frame -> `Reading`. Half a million parameters; about 4 ms a frame on one CPU core.

    Buffers `mean` and `std` are the statistics of the identity traits; `fit_traits` sets them.
    """

    def __init__(self) -> None:
        super().__init__()
        traits = identity_vector(sample_identities(1, seed=0)).shape[1]
        self.sizes = (len(MOUTH_CHANNELS), len(MOTION_CHANNELS), traits)
        self.trunk = nn.Sequential(
            nn.PixelUnshuffle(4),
            nn.Conv2d(48, 32, 3, stride=2, padding=1),
            nn.SiLU(),
            Residual(32),
            nn.Conv2d(32, 48, 3, padding=1),
            Residual(48),
        )
        self.maps = nn.Conv2d(48, 2, 3, padding=1)
        self.coarse = nn.Sequential(
            nn.Conv2d(48, 48, 3, stride=2, padding=1),
            Residual(48),
            nn.SiLU(),
            nn.Conv2d(48, 4, 1),
            nn.Flatten(),
            nn.Linear(4 * 17 * 11, 48),
            nn.SiLU(),
        )
        self.mouth_window = Window(MOUTH_WINDOW, 64)
        self.eye_window = Window(EYE_WINDOW, 64)
        # Mean colours of 16x16 tiles, which the normalisation layers elsewhere lose.
        self.colours = nn.Sequential(nn.Linear(3 * 17 * 11, 32), nn.SiLU())
        self.mix = nn.Sequential(nn.Linear(48 + 64 + 64 + 32 + 4, 144), nn.SiLU())
        self.head = nn.Linear(144, sum(self.sizes))
        self.register_buffer("mean", torch.zeros(traits))
        self.register_buffer("std", torch.ones(traits))

    @staticmethod
    def load(path: Path, device: torch.device | str = "cpu") -> FrameReader:
        """Read a trained reader, in eval mode, float32.

        Raises:
            UserError: the file is missing, damaged or for another model.
        """
        reader = FrameReader()
        load_weights(reader, path)
        return reader.to(device).eval().requires_grad_(False)

    def fit_traits(self, vectors: Tensor) -> None:
        """Set the statistics of the traits from identity vectors [n, traits] in raw units."""
        self.mean.copy_(vectors.mean(0))
        self.std.copy_(vectors.std(0).clamp_min(1e-3))

    def normalise(self, vectors: Tensor) -> Tensor:
        """Raw identity vectors [n, traits] -> the units of `Reading.identity`."""
        return (vectors - self.mean) / self.std

    def forward(self, frames: Tensor, shift: Tensor | None = None) -> Reading:
        """Read frames.

        Args:
            frames: float [batch, 3, 272, 176] in [0, 1].
            shift: [2, batch, 2], pixels by which the windows at mouth and eyes miss; for training.

        Returns:
            The readings, float32.
        """
        x = self.trunk(frames * 2 - 1)
        mouth_xy, eye_xy = self._centres(self.maps(x).float())
        mouth_at, eye_at = mouth_xy.detach(), eye_xy.detach()
        if shift is not None:
            mouth_at, eye_at = mouth_at + shift[0], eye_at + shift[1]
        features = (
            self.coarse(x),
            self.mouth_window(crop(frames, mouth_at, MOUTH_WINDOW, MOUTH_DROP)),
            self.eye_window(crop(frames, eye_at, EYE_WINDOW, EYE_DROP)),
            self.colours(F.avg_pool2d(frames * 2 - 1, 16).flatten(1)),
            *(4 * at[:, :1] / WIDTH - 2 for at in (mouth_at, eye_at)),
            *(4 * at[:, 1:] / HEIGHT - 2 for at in (mouth_at, eye_at)),
        )
        out = self.head(self.mix(torch.cat([f.float() for f in features], 1))).float()
        return Reading(*out.split(self.sizes, 1), mouth_xy, eye_xy)

    @staticmethod
    def _centres(maps: Tensor) -> tuple[Tensor, Tensor]:
        """Soft-argmax (Levine et al. 2016) of maps [batch, 2, h, w] -> two times [batch, 2] pixels (x, y)."""
        height, width = maps.shape[-2:]
        share = maps.flatten(2).softmax(-1).unflatten(2, (height, width))
        x = (torch.arange(width, device=maps.device) + 0.5) * (WIDTH / width)
        y = (torch.arange(height, device=maps.device) + 0.5) * (HEIGHT / height)
        centres = torch.stack(((share.sum(2) * x).sum(-1), (share.sum(3) * y).sum(-1)), -1)
        return centres[:, 0], centres[:, 1]


def crop(frames: Tensor, centre: Tensor, size: tuple[int, int], drop: float = 0.0) -> Tensor:
    """Windows at subpixel places, by bilinear interpolation. Outside the frame its edge is repeated.

    Args:
        frames: [batch, channels, H, W]; centre: [batch, 2], pixels (x, y), the corner of the frame being (0, 0).
        size: (height, width) of the window in pixels.
        drop: pixels that the window's middle lies below `centre`.

    Returns:
        [batch, channels, height, width].
    """
    height, width = size
    x = centre[:, :1] + torch.arange(width, device=frames.device) - (width - 1) / 2
    y = centre[:, 1:] + drop + torch.arange(height, device=frames.device) - (height - 1) / 2
    x, y = x * (2 / frames.shape[3]) - 1, y * (2 / frames.shape[2]) - 1
    grid = torch.stack((x[:, None].expand(-1, height, -1), y[:, :, None].expand(-1, -1, width)), -1)
    return F.grid_sample(frames, grid.to(frames.dtype), padding_mode="border", align_corners=False)
