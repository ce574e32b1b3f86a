"""The cycle counter of a multiprocessor: how many cycles work took, however the clock changed meanwhile."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.dispatch import jit, tl


class CycleCounter:
    """Readings of the counter, in order, on the current stream of a CUDA device.

    Args:
        readings: how many at most.
        device: that counts.
    """

    def __init__(self, readings: int, device: torch.device) -> None:
        self._made = 0
        self._readings = torch.zeros(readings, 2, dtype=torch.int64, device=device)

    def read(self) -> None:
        """Queue one reading."""
        if self._made == len(self._readings):
            raise ValueError(f"room for {self._made} readings only")
        _read_cycles[(1,)](self._readings[self._made], num_warps=1)
        self._made += 1

    def readings(self) -> tuple[Tensor, Tensor]:
        """Wait for the device; int64 [made] each: cycles, and which multiprocessor counted them."""
        cycles, multiprocessor = self._readings[: self._made].cpu().unbind(1)
        return cycles, multiprocessor


@jit
def _read_cycles(out):
    cycles = tl.inline_asm_elementwise("mov.u64 $0, %clock64;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)
    multiprocessor = tl.inline_asm_elementwise("mov.u32 $0, %smid;", "=r", [], dtype=tl.int32, is_pure=True, pack=1)
    tl.store(out, cycles)
    tl.store(out + 1, multiprocessor.to(tl.int64))
