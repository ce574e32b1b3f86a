"""One rank of a sequence group without the others, to time its own work where there is one GPU."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.comm.exchange import LocalExchange
from kernels.fp8 import FP8

# Standard deviation of random FP8 data behind a calibrated scale: outliers come near the largest number. As many bits
# toggle as in a real step, which decides how much power a product draws.
_SPREAD = 40.0


class AloneExchange(LocalExchange):
    """An `Exchange` that writes all of this rank's data to its own memory and waits for nobody.

    What the others would send is random and there from the start. So the work is that of a rank of the group, writes
    included; only the link is missing.

    Args:
        size: ranks of the group; this one is rank 0.
        device: of the buffers.
    """

    def __init__(self, size: int, device: torch.device | str) -> None:
        super().__init__(device)
        self.size = size

    def share(self, shape: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
        """See `Exchange.share`."""
        return [self._random(shape, dtype) for _ in range(self.size)]

    def _random(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        tensor = torch.empty(shape, dtype=dtype, device=self._device)
        for part in tensor.unbind() if tensor.dim() > 2 else (tensor,):
            values = torch.randn(part.shape, device=self._device, dtype=torch.bfloat16)
            part.copy_((values * _SPREAD).to(FP8) if dtype == FP8 else values)
        return tensor
