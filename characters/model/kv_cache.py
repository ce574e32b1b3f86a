"""The DiT's memory of the chunks it attends to: fixed buffers, a ring with sinks, all work done at write time."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from characters.model.rope import Rope3D, rotate


class KVCache:
    """Keys and values of the sink (the reference image) and of a ring of recent chunks, for every layer.

    Each layer owns one K and one V buffer of [batch, (sink + ring) * tokens, heads, head_dim]. The current chunk
    writes into the ring slot of the oldest one, so a step allocates, moves and rotates nothing of the past:

    - K is rotated when it is written, once. Attention doesn't care for the order of keys once they carry their
      rotation, so the ring is read as it lies.
    - The ring is always full: it starts as copies of the reference image, as if the character had held still before
      the session. Every step therefore has the same shapes.
    - The sink keeps the distance `ring` to the current chunk: `begin` rewrites its K for the new position.
    - Nothing advances until `commit`. A step that failed is repeated by calling `begin` again: it overwrites its own
      slot and nothing else.

    Args:
        layers, batch, heads, head_dim: sizes of the model.
        sink, ring: chunks; ring includes the current one.
        rope: tables for the model's token grid.
        dtype, device: of the buffers.
    """

    def __init__(
        self,
        *,
        layers: int,
        batch: int,
        heads: int,
        head_dim: int,
        sink: int,
        ring: int,
        rope: Rope3D,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:
        self.sink, self.ring, self.rope = sink, ring, rope
        self.tokens = rope.tokens
        self.index = 0
        self.prefilling = False
        shape = (layers, batch, (sink + ring) * self.tokens, heads, head_dim)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self.sink_keys = torch.zeros((layers, batch, sink * self.tokens, heads, head_dim), dtype=dtype, device=device)
        # Rotation and cursor of the current chunk, rewritten in place by begin(): a captured CUDA graph that reads
        # them serves every ring position.
        self.rows = torch.zeros(self.tokens, dtype=torch.int64, device=device)
        self._offsets = torch.arange(self.tokens, dtype=torch.int64, device=device)
        self.cos, self.sin = rope.table(0, dtype=dtype, device=device)
        self._sink_tables = [rope.table(0, dtype=dtype, device=device) for _ in range(sink)]
        self._layers = [LayerCache(self, index) for index in range(layers)]

    def slot(self, index: int) -> slice:
        """Rows of the ring that chunk `index` owns."""
        start = (self.sink + index % self.ring) * self.tokens
        return slice(start, start + self.tokens)

    def _sink_position(self, index: int, sink: int) -> int:
        return index - self.ring - (self.sink - 1 - sink)

    def prefill(self) -> None:
        """Start over: the chunks until `seal` fill the sink, each attending to the sink chunks up to itself."""
        self.prefilling = True
        self.index = 0

    def seal(self) -> None:
        """End the prefill: fill the ring with copies of the last sink chunk."""
        last = slice((self.sink - 1) * self.tokens, self.sink * self.tokens)
        for index in range(-self.ring, 0):
            cos, sin = self.rope.table(index, dtype=self.keys.dtype, device=self.keys.device)
            self.keys[:, :, self.slot(index)] = rotate(self.sink_keys[:, :, last], cos, sin)
            self.values[:, :, self.slot(index)] = self.values[:, :, last]
        self.prefilling = False
        self.index = 0

    def begin(self) -> None:
        """Prepare the step of chunk `index`: cursor, rotation, and the sink's K at its new position."""
        self.rope.move(self.cos, self.sin, self.index)
        start = self.index * self.tokens if self.prefilling else self.slot(self.index).start
        torch.add(self._offsets, start, out=self.rows)
        if self.prefilling:
            return
        for sink, (cos, sin) in enumerate(self._sink_tables):
            self.rope.move(cos, sin, self._sink_position(self.index, sink))
            rows = slice(sink * self.tokens, (sink + 1) * self.tokens)
            self.keys[:, :, rows] = rotate(self.sink_keys[:, :, rows], cos, sin)

    def commit(self) -> None:
        """The chunk is finished: keep what its last pass wrote and move on by one."""
        self.index += 1

    def layer(self, index: int) -> LayerCache:
        """The part of the cache that belongs to one layer."""
        return self._layers[index]


class LayerCache:
    """One layer's view of a `KVCache`."""

    def __init__(self, cache: KVCache, index: int) -> None:
        self._cache = cache
        self._keys, self._values = cache.keys[index], cache.values[index]
        self._sink_keys = cache.sink_keys[index]

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write the current chunk's k and v, then attend to the whole context.

        Args:
            q, k, v: [batch, tokens, heads, head_dim], not rotated.

        Returns:
            [batch, tokens, heads * head_dim].
        """
        cache, keys, values = self._cache, self._keys, self._values
        keys.index_copy_(1, cache.rows, rotate(k, cache.cos, cache.sin))
        values.index_copy_(1, cache.rows, v)
        if cache.prefilling:
            self._sink_keys.index_copy_(1, cache.rows, k)
            filled = (cache.index + 1) * cache.tokens
            keys, values = keys[:, :filled], values[:, :filled]
        return attention(rotate(q, cache.cos, cache.sin), keys, values)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmax attention.

    Args:
        q: [batch, queries, heads, head_dim]; k, v: [batch, keys, heads, head_dim].

    Returns:
        [batch, queries, heads * head_dim].
    """
    out = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
    return out.transpose(1, 2).flatten(2)
