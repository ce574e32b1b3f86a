"""Training's form of the context: all chunks of a clip at once, each seeing what the cache would show it."""

from __future__ import annotations

import torch
from torch import Tensor

from characters.model.kv_cache import attention
from characters.model.rope import Rope3D, rotate


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
        self.chunks, self.ring = chunks, ring
        self.tables = [rope.table(slot, dtype=dtype, device=device) for slot in range(ring + 1)]

    def layer(self, index: int) -> ClipWindow:
        """Every layer sees the same window; nothing is kept between them."""
        return self

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q, k, v [clips * (1 + chunks), tokens, heads, head_dim] -> [clips * (1 + chunks), tokens, dim]."""
        shape = (-1, 1 + self.chunks)
        q, k, v = (x.unflatten(0, shape) for x in (q, k, v))
        reference = attention(rotate(q[:, 0], *self.tables[0]), rotate(k[:, 0], *self.tables[0]), v[:, 0]).unsqueeze(1)
        keys = [rotate(k[:, :1], *self.tables[0]).expand(-1, self.chunks, -1, -1, -1)]
        values = [v[:, :1].expand(-1, self.chunks, -1, -1, -1)]
        for slot in range(1, self.ring + 1):
            past = self.ring - slot
            copies = min(past, self.chunks)
            for source, rows in ((k, keys), (v, values)):
                shifted = torch.cat(
                    (source[:, :1].expand(-1, copies, -1, -1, -1), source[:, 1 : 1 + self.chunks - copies]), 1
                )
                rows.append(rotate(shifted, *self.tables[slot]) if source is k else shifted)
        out = attention(
            rotate(q[:, 1:], *self.tables[self.ring]).flatten(0, 1),
            torch.cat(keys, 2).flatten(0, 1),
            torch.cat(values, 2).flatten(0, 1),
        ).unflatten(0, (-1, self.chunks))
        return torch.cat((reference, out), 1).flatten(0, 1)
