"""One picture on several GPUs, each with a band of its rows: what the bands exchange.

Every convolution needs one row of each neighbour. The attention in the middle needs the keys and values of all bands.
All else is local, so a band's result equals that of the whole picture, up to rounding.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from kernels.comm.breakable_group import BreakableGroup


class Rows(Protocol):
    """A band's view of the whole."""

    def band(self, latent: Tensor) -> Tensor:
        """The rows of this band, [..., H, w] -> [..., h, w]."""

    def exchange(self, halo: Tensor) -> None:
        """Fill the border rows of a convolution's input [frames, h + 2, w + 2, c] with the neighbours' rows."""

    def gather(self, x: Tensor) -> Tensor:
        """[frames, pixels, c] of this band -> [frames, all pixels, c]."""

    def join(self, planes: Tensor) -> Tensor:
        """uint8 [frames, h * 3 / 2, W], I420 of this band -> [frames, H * 3 / 2, W], of the whole picture."""


class WholeFrame:
    """All rows on one GPU: nothing to exchange."""

    def band(self, latent: Tensor) -> Tensor:
        """See `Rows.band`."""
        return latent

    def exchange(self, halo: Tensor) -> None:
        """See `Rows.exchange`."""

    def gather(self, x: Tensor) -> Tensor:
        """See `Rows.gather`."""
        return x

    def join(self, planes: Tensor) -> Tensor:
        """See `Rows.join`."""
        return planes


class SplitRows:
    """Equal bands over the processes of a group, the top one on rank 0.

    It uses collectives only, which a CUDA graph can capture and which run on gloo as on NCCL. On a CPU they raise
    ExchangeBroken if a process has ended; on a GPU the group's `check` does.

    Args:
        group: whose size divides the rows of a latent.
    """

    def __init__(self, group: BreakableGroup) -> None:
        self._group, self.rank, self.size = group, group.rank, group.size

    def band(self, latent: Tensor) -> Tensor:
        """See `Rows.band`."""
        return latent.chunk(self.size, -2)[self.rank]

    def exchange(self, halo: Tensor) -> None:
        """See `Rows.exchange`."""
        edges = torch.stack((halo[:, 1], halo[:, -2]))
        everybody = self._all(edges)
        if self.rank > 0:
            halo[:, 0] = everybody[self.rank - 1, 1]
        if self.rank < self.size - 1:
            halo[:, -1] = everybody[self.rank + 1, 0]

    def gather(self, x: Tensor) -> Tensor:
        """See `Rows.gather`."""
        return self._all(x.contiguous()).transpose(0, 1).flatten(1, 2)

    def join(self, planes: Tensor) -> Tensor:
        """See `Rows.join`."""
        bands = self._all(planes).transpose(0, 1).flatten(2)
        luma = bands.shape[-1] * 2 // 3
        parts = bands.split((luma, luma // 4, luma // 4), -1)
        return torch.cat([part.flatten(1) for part in parts], 1).view(len(planes), -1, planes.shape[-1])

    def _all(self, x: Tensor) -> Tensor:
        """[...] -> [size, ...]. Bytes: gloo does not know every dtype."""
        self._group.check()
        out = x.new_empty(self.size, *x.shape)
        parts, own = out.flatten(0, 1).view(torch.uint8), x.view(torch.uint8)
        work = dist.all_gather_into_tensor(parts, own, group=self._group.group, async_op=not x.is_cuda)
        if work is not None:
            self._group.wait(work)
        return out
