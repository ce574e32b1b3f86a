"""The context of a bidirectional window: every token attends to all tokens of its window, and nothing is kept."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from characters.model.attention import attention
from characters.model.rope import Rope3D
from kernels.fp8 import Precision, Quantised, store
from kernels.write_qkv import rotate_pairs


class WindowContext:
    """See `Context`. The latent frames of a window have the positions 0, 1, ... in every window.

    Args:
        frames: latent frames of a window.
        rope: tables for the model's token grid.
        device: of the tables.
    """

    def __init__(self, frames: int, rope: Rope3D, device: torch.device | str) -> None:
        tables = [rope.table(position, device=device) for position in range(frames)]
        self._cos, self._sin = (torch.cat(parts) for parts in zip(*tables, strict=True))
        self._head_dim = 2 * rope.pairs

    def layer(self, index: int) -> WindowContext:
        """Every layer sees the same window; nothing is kept between them."""
        return self

    def own_rows(self, x: Tensor) -> Tensor:
        """One GPU computes them all."""
        return x

    def gather(self, x: Tensor) -> Tensor:
        """See `own_rows`."""
        return x

    def attend(self, qkv: Tensor, norm_q: Tensor, norm_k: Tensor, to: Precision) -> Tensor | Quantised:
        """See `LayerContext.attend`: [rows, 3 * dim] -> [rows, dim], rows of one frame after another."""
        q, k, v = qkv.chunk(3, -1)
        q, k = (F.rms_norm(x, weight.shape, weight, 1e-6) for x, weight in ((q, norm_q), (k, norm_k)))
        q, k, v = (x.unflatten(-1, (-1, self._head_dim)) for x in (q, k, v))
        cos, sin = self._cos.to(q.dtype), self._sin.to(q.dtype)
        return store(attention(rotate_pairs(q, cos, sin), rotate_pairs(k, cos, sin), v), to)
