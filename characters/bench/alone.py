"""One rank of a sequence group without the others, to time its own work where there is one GPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.fp8 import FP8
from kernels.scatter_rows import scatter_rows
from kernels.write_qkv import QkvScales, QkvTarget, write_qkv

# Standard deviation of random FP8 data behind a calibrated scale: outliers come near the largest number, and as many
# bits toggle as in a real step, which decides how much power a product draws.
_SPREAD = 40.0


class AloneExchange:
    """An `Exchange` that moves this rank's own data, all of it, to memory of its own; nothing is waited for.

    What the others would send is random and lies there from the start. So the work is that of a rank of the group,
    writes included, and the link is not.

    Args:
        size: ranks of the group; this one is rank 0.
        device: of the buffers.
    """

    rank = 0

    def __init__(self, size: int, device: torch.device | str) -> None:
        self.size = size
        self._device = device

    def share(self, shape: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
        """See `Exchange.share`."""
        return [self._random(shape, dtype) for _ in range(self.size)]

    def write(
        self,
        qkv: Tensor,
        norm_q: Tensor,
        norm_k: Tensor,
        cos: Tensor,
        sin: Tensor,
        *,
        targets: Sequence[QkvTarget],
        cursor: Tensor,
        tokens: int,
        scales: QkvScales | None = None,
    ) -> QkvTarget:
        """See `Exchange.write`."""
        write_qkv(
            qkv, norm_q, norm_k, cos, sin, targets=targets, cursor=cursor, first_row=0, tokens=tokens, scales=scales
        )
        return targets[0]

    def collect(self, o: Tensor, scale: Tensor | None, targets: Sequence[Tensor]) -> Tensor:
        """See `Exchange.collect`."""
        scatter_rows(o, scale, targets, 0)
        return targets[0]

    def settle(self) -> None:
        """See `Exchange.settle`: there is nobody to wait for."""

    def check(self) -> None:
        """See `Exchange.check`: there is nobody to wait for."""

    def abort(self, reason: str = "") -> None:
        """See `Exchange.abort`."""

    def close(self) -> None:
        """See `Exchange.close`."""

    def _random(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        tensor = torch.empty(shape, dtype=dtype, device=self._device)
        for part in tensor.unbind() if tensor.dim() > 2 else (tensor,):
            values = torch.randn(part.shape, device=self._device, dtype=torch.bfloat16)
            part.copy_((values * _SPREAD).to(FP8) if dtype == FP8 else values)
        return tensor
