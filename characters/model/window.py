"""The context in training: all chunks of a clip at once, each attending to what the cache would show it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from characters.model.attention import attention
from characters.model.rope import Rope3D
from kernels.fp8 import Precision, Quantised, store
from kernels.write_qkv import rotate_pairs


class ClipWindow:
    """Attention of a clip whose batch is laid out [clips * (1 + chunks)]: the reference image, then the chunks.

    The reference attends to itself. Chunk i attends to the reference at distance `ring`, to the `ring - 1` chunks
    before it and to itself; before the clip's first chunk the ring holds copies of the reference, as in `KVCache`.
    RoPE is relative, so positions are slots of the window: 0 = sink, `ring` = current.

    Args:
        chunks: chunks of a clip.
        ring: chunks in the ring, the current one included.
        rope: tables for the model's token grid.
        dtype, device: of the tables.
    """

    def __init__(self, *, chunks: int, ring: int, rope: Rope3D, dtype: torch.dtype, device: torch.device | str) -> None:
        self.chunks, self.ring, self.head_dim = chunks, ring, 2 * rope.pairs
        self.tables = [rope.table(slot, dtype=dtype, device=device) for slot in range(ring + 1)]

    def layer(self, index: int) -> ClipWindow:
        """Every layer sees the same window; nothing is kept between them."""
        return self

    def own_rows(self, x: Tensor) -> Tensor:
        """All rows: training does not split a chunk over GPUs."""
        return x

    def gather(self, x: Tensor) -> Tensor:
        """See `own_rows`."""
        return x

    def attend(self, qkv: Tensor, norm_q: Tensor, norm_k: Tensor, to: Precision) -> Tensor | Quantised:
        """See `LayerCache.attend`: [clips * (1 + chunks), tokens, 3 * dim] -> [clips * (1 + chunks), tokens, dim]."""
        q, k, v = qkv.chunk(3, -1)
        q, k = (F.rms_norm(x, weight.shape, weight, 1e-6) for x, weight in ((q, norm_q), (k, norm_k)))
        shape = (-1, 1 + self.chunks)
        q, k, v = (x.unflatten(-1, (-1, self.head_dim)).unflatten(0, shape) for x in (q, k, v))
        turned = (rotate_pairs(x[:, 0], *self.tables[0]) for x in (q, k))
        reference = attention(*turned, v[:, 0]).unsqueeze(1)
        keys = [rotate_pairs(k[:, :1], *self.tables[0]).expand(-1, self.chunks, -1, -1, -1)]
        values = [v[:, :1].expand(-1, self.chunks, -1, -1, -1)]
        for slot in range(1, self.ring + 1):
            past = self.ring - slot
            copies = min(past, self.chunks)
            for source, rows in ((k, keys), (v, values)):
                shifted = torch.cat(
                    (source[:, :1].expand(-1, copies, -1, -1, -1), source[:, 1 : 1 + self.chunks - copies]), 1
                )
                rows.append(rotate_pairs(shifted, *self.tables[slot]) if source is k else shifted)
        out = attention(
            rotate_pairs(q[:, 1:], *self.tables[self.ring]).flatten(0, 1),
            torch.cat(keys, 2).flatten(0, 1),
            torch.cat(values, 2).flatten(0, 1),
        ).unflatten(0, (-1, self.chunks))
        return store(torch.cat((reference, out), 1).flatten(0, 1), to)
