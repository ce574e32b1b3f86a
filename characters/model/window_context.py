"""The context of a bidirectional window: every token attends to all tokens of its window, and nothing is kept."""

from __future__ import annotations

import torch
from torch import Tensor

from characters.model.attention import attention
from characters.model.plan import ROW_MULTIPLE
from characters.model.rope import Rope3D
from kernels.attention import available_backends
from kernels.fp8 import FP8, Precision, Quantised, store
from kernels.scatter_rows import scatter_rows
from kernels.write_qkv import ProjectedQkv, QkvScales, QkvTarget, write_qkv


class WindowContext:
    """See `Context`. The latent frames of a window have the positions 0, 1, ... in every window.

    Args:
        frames: latent frames of a window.
        heads: of the model.
        rope: tables for the model's token grid.
        dtype: of q, k and v as attention reads them: the model's own, or FP8.
        device: of the buffers.
        scales: float32 [layers, 3, heads], of FP8 q, k and v.
        layers: record the largest magnitudes of q, k and v of so many layers in `peaks`, float32 [layers, 3, heads].
    """

    def __init__(
        self,
        frames: int,
        heads: int,
        rope: Rope3D,
        dtype: torch.dtype,
        device: torch.device | str,
        *,
        scales: Tensor | None = None,
        layers: int = 0,
    ) -> None:
        tables = [rope.table(position, device=device) for position in range(frames)]
        self.cos, self.sin = (torch.cat(parts) for parts in zip(*tables, strict=True))
        self.rows, head_dim = len(self.cos), 2 * rope.pairs
        # As in the KV cache: FP8 products need V's keys side by side, but FlashAttention-3 takes rows.
        turned = dtype == FP8 and "fa3" not in available_backends(device) and self.rows % ROW_MULTIPLE == 0
        shape = self.rows, heads, head_dim
        q, k, v = (
            torch.zeros(size, dtype=dtype, device=device)
            for size in (shape, shape, (heads, head_dim, self.rows) if turned else shape)
        )
        self.target = QkvTarget(q, k, v, turned)
        self.outputs = torch.zeros(self.rows, heads * head_dim, dtype=dtype, device=device)
        self.start = torch.zeros((), dtype=torch.int64, device=device)
        self.scales = scales
        self.peaks = torch.zeros(layers, 3, heads, device=device) if layers else None

    def layer(self, index: int) -> LayerWindow:
        """The part of one layer. All use the same buffers, one after another."""
        return LayerWindow(self, index)

    def own_rows(self, x: Tensor) -> Tensor:
        """One GPU computes them all."""
        return x

    def gather(self, x: Tensor) -> Tensor:
        """See `own_rows`."""
        return x


class LayerWindow:
    """One layer's view of a `WindowContext`."""

    def __init__(self, window: WindowContext, index: int) -> None:
        self._window, self._index = window, index
        self._scales = None if window.scales is None else QkvScales(*window.scales[index])

    def attend(self, qkv: Tensor, norm_q: Tensor, norm_k: Tensor, to: Precision) -> Tensor | Quantised:
        """See `LayerContext.attend`: [rows, 3 * dim] -> [rows, dim], rows of one frame after another."""
        window, target = self._window, self._window.target
        projected = ProjectedQkv(qkv, norm_q, norm_k, window.cos, window.sin)
        write_qkv(
            projected, targets=[target], cursor=window.start, first_row=0, tokens=window.rows, scales=self._scales
        )
        values = target.values.permute(2, 0, 1) if target.values_transposed else target.values
        if window.peaks is not None:
            for peak, x in zip(window.peaks[self._index], (target.q, target.keys, values), strict=True):
                torch.maximum(peak, x.float().abs().amax((0, 2)), out=peak)
        o = attention(target.q, target.keys, values, scales=self._scales)
        if not isinstance(to, Tensor) or window.outputs.dtype != FP8:
            return store(o, to)
        scatter_rows(o, to, [window.outputs], 0)
        return Quantised(window.outputs, to)
