"""The portrait as the sink of Wan2.2-S2V: its reference, and a still clip of it packed the coarser the older.

Source: FramePack (Zhang and Agrawala 2025), with the buckets of Wan2.2-S2V: the newest latent frame in patches of
1 x 2 x 2, the two before it in 2 x 4 x 4, the sixteen before those in 4 x 8 x 8.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from characters.model.rope import Rope3D
from characters.model.sink import Sink

# Latent frames of each bucket, from new to old, and the frames and pixels of its patches.
BUCKETS, DEPTHS, SIDES = (1, 2, 16), (1, 2, 4), (2, 4, 8)
LATENTS = sum(BUCKETS)
PIXEL_FRAMES = 1 + 4 * (LATENTS - 1)


class FramePack(nn.Module):
    """Embeds the packed clip.

    Args:
        channels: of a latent frame.
        dim: of a token.
    """

    def __init__(self, channels: int, dim: int) -> None:
        super().__init__()
        sizes = (channels * depth * side**2 for depth, side in zip(DEPTHS, SIDES, strict=True))
        self.proj, self.proj_2x, self.proj_4x = (nn.Linear(size, dim) for size in sizes)

    def forward(self, clip: Tensor) -> Tensor:
        """[19, channels, h, w] -> [tokens, dim], the newest bucket first."""
        old, middle, new = clip.movedim(1, 0).split(BUCKETS[::-1], 1)
        layers = (self.proj, self.proj_2x, self.proj_4x)
        found = []
        for layer, x, depth, side in zip(layers, (new, middle, old), DEPTHS, SIDES, strict=True):
            patches = x.unfold(1, depth, depth).unfold(2, side, side).unfold(3, side, side)
            found.append(layer(patches.permute(1, 2, 3, 0, 4, 5, 6).flatten(3)).flatten(0, 2))
        return torch.cat(found)


def portrait_sink(rope: Rope3D, grid: tuple[int, int], distance: int) -> Sink:
    """Where the reference and the packed clip stand.

    The reference stays `distance` latent frames ahead of the current chunk. The clip stays where it is, before the
    first chunk; a patch of several frames stands at one of them.

    Args:
        rope: of the model's token grid.
        grid: its rows and columns.
        distance: of the reference.
    """
    space = rope.space.unflatten(0, grid)
    times, groups, angles = [float(distance)], [torch.zeros(rope.tokens, dtype=torch.int64)], [rope.space]
    before = 0
    for frames, depth, side in zip(BUCKETS, DEPTHS, SIDES, strict=True):
        before += frames
        places = _spread(before, before - frames + 1, frames // depth)
        rows, columns = (_spread(0, size - 1, 2 * size // side) for size in grid)
        patches = space[rows][:, columns].flatten(0, 1)
        for place in places:
            groups.append(torch.full((len(patches),), len(times)))
            times.append(-float(place))
            angles.append(patches)
    follows = torch.arange(len(times)) == 0
    return Sink(torch.tensor(times, dtype=torch.float64), follows, torch.cat(groups), torch.cat(angles))


def _spread(first: int, last: int, count: int) -> list[int]:
    """Whole places from first to last, evenly spread."""
    return np.linspace(first, last, count).astype(int).tolist()
