"""The processes that decode one session's picture, a band of its rows each."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from characters.model.wan_vae.rows import SplitRows
from kernels.comm.breakable_group import BreakableGroup
from kernels.comm.group import abort_group, open_group


class DecoderGroup:
    """One process's view; all of them are made at once, and there is one a process at a time.

    Args:
        path: of a file that does not exist yet, the same for all.
        band, bands: of this process, from the top, and how many there are.
        device: of this process.

    Attributes:
        rows: what the bands tell each other.

    Raises:
        RuntimeError: another process did not come.
    """

    def __init__(self, path: str, band: int, bands: int, device: torch.device) -> None:
        self._device = device
        self._group = BreakableGroup(open_group(path, band, bands, device), device)
        self.rows = SplitRows(self._group)

    def agree(self, latents: list[Tensor]) -> list[Tensor]:
        """The latents of the first band, on this process's device."""
        told: list[Tensor | None] = [torch.cat(latents).cpu()]
        dist.broadcast_object_list(told, 0, device=torch.device("cpu"))
        assert told[0] is not None
        return list(told[0].to(self._device).split(1))

    def check(self) -> None:
        """Raise ExchangeBroken if a process has gone, or somebody has called `abort`."""
        self._group.check()

    def abort(self, reason: str) -> None:
        """From any thread: whoever waits for another process stops waiting."""
        self._group.abort(reason)

    def close(self) -> None:
        """Leave; the others are leaving too, or have gone."""
        self._group.close()
        abort_group(self._group.group, self._device)
        dist.destroy_process_group()
