"""The DiT's memory of the chunks it attends to: fixed buffers, a ring with sinks, all work done at write time."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from characters.model.attention import attention
from characters.model.plan import ROW_MULTIPLE, shard_rows
from characters.model.rope import Rope3D
from kernels.attention import available_backends
from kernels.comm.exchange import Exchange, LocalExchange
from kernels.fp8 import FP8, Precision, Quantised, store
from kernels.write_qkv import ProjectedQkv, QkvScales, QkvTarget, anchor_sink


class KVCache:
    """Keys and values of the sink (the reference image) and of a ring of recent chunks, for every layer.

    A layer's K and V are [(sink + ring) * slot_rows, heads, head_dim]: slots of one chunk each, and in a slot the
    chunk's tokens, of one batch row after another. The current chunk writes into the slot of the oldest one, so a step
    allocates, moves and rotates nothing of the past:

    - K is rotated once, when it is written. Keys that carry their rotation may stand in any order, so attention reads
      the ring as it lies.
    - The ring is always full: it starts as copies of the reference image, as if the character had held still before
      the session. Every step therefore has the same shapes.
    - The sink keeps the distance `ring` to the current chunk: `prepare` turns its K to the new position.
    - The chunk's number lies on the device too. Cursor and angles are computed from it there, in float64, so one
      captured CUDA graph serves every chunk.
    - Nothing advances until `commit`. To repeat a step that failed, call `begin` again: a step overwrites its own slot
      and nothing else.
    - In a sequence group each rank keeps the heads that it attends with, of all rows.

    Args:
        layers, batch, heads, head_dim: sizes of the model, or of this GPU's part of it; heads are those of all ranks.
        sink, ring: chunks; ring includes the current one.
        rope: tables for the model's token grid.
        dtype: of K, V and q: the model's own, or FP8.
        device: of the buffers.
        exchange: joins the ranks of a sequence group, which needs a batch of one; default: a group of one.
        scales: float32 [layers, 3, heads], of FP8 q, k and v.
        outputs: dtype of attention's output; FP8 if the next layer's scale is static.
        observe: record the largest magnitudes of q, k and v in `peaks`, float32 [layers, 3, heads].
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
        exchange: Exchange | None = None,
        scales: Tensor | None = None,
        outputs: torch.dtype | None = None,
        observe: bool = False,
    ) -> None:
        self.exchange: Exchange = exchange or LocalExchange(device)
        ranks, rank = self.exchange.size, self.exchange.rank
        assert batch == 1 or ranks == 1, "a sequence group takes one session"
        assert heads % ranks == 0, "the ranks of a sequence group share the heads evenly"
        self.sink, self.ring, self.rope, self.batch = sink, ring, rope, batch
        self.slot_rows = batch * rope.tokens
        self.rows = shard_rows(self.slot_rows, ranks)
        self.index = 0
        self.prefilling = False
        slots, own = (sink + ring) * self.slot_rows, heads // ranks
        self.own_heads = slice(rank * own, (rank + 1) * own)
        self.scales = scales
        self._key_scales = None if scales is None else scales[:, 1, self.own_heads].contiguous()
        # FP8 products need V's keys side by side. FlashAttention-3 transposes V itself and takes it only as rows.
        side_by_side = dtype == FP8 and "fa3" not in available_backends(device)
        self.values_transposed = side_by_side and self.slot_rows % ROW_MULTIPLE == 0
        per_head = (own, head_dim, slots) if self.values_transposed else (slots, own, head_dim)
        share = self.exchange.share
        self._all_keys = share((layers, slots, own, head_dim), dtype)
        self._all_values = share((layers, *per_head), dtype)
        self._queries = share((ranks * self.rows, own, head_dim), dtype)
        self.outputs = share((self.rows, heads * head_dim), outputs or dtype)
        self._gathered: dict[tuple[int, torch.dtype], list[Tensor]] = {}
        # The sink's K before its rotation, not rounded as the ring's is. The operation that writes it writes q and V as
        # well; these are dropped.
        raw = torch.bfloat16 if dtype == FP8 else dtype
        self._all_sink_keys = share((layers, sink * self.slot_rows, own, head_dim), raw)
        self._dropped_queries = share((ranks * self.rows, own, head_dim), raw)
        self._dropped_values = share((sink * self.slot_rows, own, head_dim), raw)
        mine = rank % len(self._all_keys)
        self.keys, self.values, self.sink_keys = (
            x[mine] for x in (self._all_keys, self._all_values, self._all_sink_keys)
        )
        self.peaks = torch.zeros((layers, 3, own), device=device) if observe else None

        # All that a captured graph reads of the current chunk, computed on the device from the chunk's number.
        self._index = torch.zeros((), dtype=torch.int64, device=device)
        self.cursor = torch.zeros((), dtype=torch.int64, device=device)
        self._behind = torch.tensor([0, *(ring + sink - 1 - s for s in range(sink))], device=device)
        self._time_freqs = rope.time_freqs.to(device)
        padding = (0, 0, 0, ranks * self.rows - self.slot_rows)
        own_rows = slice(rank * self.rows, (rank + 1) * self.rows)
        self.cos, self.sin = (F.pad(x.repeat(batch, 1), padding)[own_rows].to(device) for x in rope.table(0))
        self._sink_cos, self._sink_sin = (
            torch.zeros((sink, self.slot_rows, rope.time_pairs), device=device) for _ in range(2)
        )
        self.unturned = torch.ones_like(self.cos), torch.zeros_like(self.sin)
        self._layers = [LayerCache(self, index) for index in range(layers)]

    def slot(self, index: int) -> slice:
        """Rows of the ring that chunk `index` owns."""
        start = (self.sink + index % self.ring) * self.slot_rows
        return slice(start, start + self.slot_rows)

    def prefill(self) -> None:
        """Start over: the chunks until `seal` fill the sink, each attending to the sink chunks up to itself."""
        self.prefilling = True
        self.index = 0

    def seal(self) -> None:
        """End the prefill: fill the ring with copies of the last sink chunk."""
        last = slice((self.sink - 1) * self.slot_rows, self.sink * self.slot_rows)
        keys, values = _bytes(self.keys), _bytes(self.values)
        if self.values_transposed:
            values = values.permute(0, 3, 1, 2)
        for index in range(-self.ring, 0):
            slot, angles = self.slot(index), (self._time_freqs * index).expand(self.slot_rows, -1)
            keys[:, slot], values[:, slot] = keys[:, last], values[:, last]
            cos, sin = angles.cos().float().contiguous(), angles.sin().float().contiguous()
            anchor_sink(self.sink_keys[:, last], cos, sin, self.keys[:, slot], self._key_scales)
        self.exchange.settle()  # another rank may be at chunk 0 already
        self.prefilling = False
        self.index = 0

    def begin(self) -> None:
        """Tell the device the number of the coming chunk. This is the only host work of a step."""
        self._index.fill_(self.index)

    def prepare(self) -> None:
        """Compute on the device: cursor and rotation of the chunk, and the sink's K at its new position."""
        slot = self._index if self.prefilling else self.sink + self._index.remainder(self.ring)
        torch.mul(slot, self.slot_rows, out=self.cursor)
        angles = (self._index - self._behind).double()[:, None] * self._time_freqs
        cos, sin = angles.cos(), angles.sin()
        self.cos[:, : self.rope.time_pairs] = cos[0]
        self.sin[:, : self.rope.time_pairs] = sin[0]
        if self.prefilling:
            return
        self._sink_cos.copy_(cos[1:, None])
        self._sink_sin.copy_(sin[1:, None])
        sinks = self.sink_keys.shape[1]
        turned = self._sink_cos.flatten(0, 1), self._sink_sin.flatten(0, 1)
        anchor_sink(self.sink_keys, *turned, self.keys[:, :sinks], self._key_scales)

    def commit(self) -> None:
        """Keep what the chunk's last pass wrote, and move on by one chunk."""
        self.index += 1

    def layer(self, index: int) -> LayerCache:
        """The part of the cache that belongs to one layer."""
        return self._layers[index]

    def own_rows(self, x: Tensor) -> Tensor:
        """This rank's rows of a chunk: [tokens, channels] -> [rows, channels], the last rank's padded with zeros."""
        if self.exchange.size == 1:
            return x
        first = self.exchange.rank * self.rows
        return F.pad(x, (0, 0, 0, self.exchange.size * self.rows - len(x)))[first : first + self.rows]

    def gather(self, x: Tensor) -> Tensor:
        """All rows of a chunk, on every rank: [rows, channels] -> [tokens, channels]."""
        size, channels = self.exchange.size, x.shape[-1]
        if size == 1:
            return x
        if (channels, x.dtype) not in self._gathered:
            self._gathered[channels, x.dtype] = self.exchange.share((self.rows, size * channels), x.dtype)
        parts = self.exchange.collect(x.repeat(size, 1), None, self._gathered[channels, x.dtype])
        return parts.unflatten(1, (size, channels)).transpose(0, 1).flatten(0, 1)[: self.slot_rows]


class LayerCache:
    """One layer's view of a `KVCache`."""

    def __init__(self, cache: KVCache, index: int) -> None:
        self._cache, self._index = cache, index
        parts = zip(cache._queries, cache._all_keys, cache._all_values, strict=True)
        self._targets = [QkvTarget(q, k[index], v[index], cache.values_transposed) for q, k, v in parts]
        raw = zip(cache._dropped_queries, cache._all_sink_keys, cache._dropped_values, strict=True)
        self._sink_targets = [QkvTarget(q, k[index], v) for q, k, v in raw]
        self._scales = None
        if cache.scales is not None:
            self._scales = QkvScales(*cache.scales[index])
            self._own_scales = tuple(scale[cache.own_heads] for scale in self._scales)

    def attend(self, qkv: Tensor, norm_q: Tensor, norm_k: Tensor, to: Precision) -> Tensor | Quantised:
        """Write the current chunk's k and v, then attend to the whole context.

        Args:
            qkv: [rows, 3 * dim], or [batch, tokens, 3 * dim]: q, k and v side by side, neither normed nor rotated.
            norm_q, norm_k: [dim], weights of the RMS norms.
            to: how the result is stored.

        Returns:
            [rows, dim], or [batch, tokens, dim]; `Quantised` if `to` says so.
        """
        cache = self._cache
        place = {"cursor": cache.cursor, "tokens": cache.slot_rows}
        projected = ProjectedQkv(qkv.flatten(0, -2), norm_q, norm_k, cache.cos, cache.sin)
        written = cache.exchange.write(projected, targets=self._targets, scales=self._scales, **place)
        q, keys, values = written.q, written.keys, written.values
        if written.values_transposed:
            values = values.permute(2, 0, 1)
        if cache.prefilling:
            cos, sin = cache.unturned
            cache.exchange.write(projected._replace(cos=cos, sin=sin), targets=self._sink_targets, **place)
            filled = (cache.index + 1) * cache.slot_rows
            keys, values = keys[:filled], values[:filled]
        if cache.peaks is not None:
            for peak, x in zip(cache.peaks[self._index], (q, keys, values), strict=True):
                torch.maximum(peak, x.float().abs().amax((0, 2)), out=peak)
        if cache.batch == 1:
            o = attention(q, keys, values, scales=self._own_scales if self._scales is not None else None)
            return self._hand_back(o, to)
        operands = (self._batched(x, i, qkv.dtype) for i, x in enumerate((q, keys, values)))
        return store(attention(*operands), to)

    def _hand_back(self, o: Tensor, to: Precision) -> Tensor | Quantised:
        exchange = self._cache.exchange
        scale = to if isinstance(to, Tensor) else None
        if exchange.size == 1 and scale is None:
            return store(o, to)
        rows = exchange.collect(o, scale, self._cache.outputs)
        return store(rows, to) if scale is None else Quantised(rows, scale)

    def _batched(self, x: Tensor, which: int, dtype: torch.dtype) -> Tensor:
        """[slots * batch * tokens, heads, head_dim] -> the values, [batch, slots * tokens, heads, head_dim]."""
        if self._scales is not None:
            x = (x.float() * self._scales[which][:, None]).to(dtype)
        return x.unflatten(0, (-1, self._cache.batch, self._cache.rope.tokens)).transpose(0, 1).flatten(1, 2)


def _bytes(x: Tensor) -> Tensor:
    """FP8 as uint8, which every copy knows; other dtypes as they are."""
    return x.view(torch.uint8) if x.dtype == FP8 else x
