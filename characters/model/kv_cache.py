"""The DiT's memory of the chunks it attends to: fixed buffers, a ring with sinks, all work done at write time."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor

from characters.model.attention import attention
from characters.model.plan import ROW_MULTIPLE, shard_rows
from characters.model.rope import Rope3D
from characters.model.sink import Sink
from kernels.attention import available_backends
from kernels.comm.exchange import Exchange, LocalExchange
from kernels.fp8 import FP8, Precision, Quantised, store
from kernels.write_qkv import ProjectedQkv, QkvScales, QkvTarget, anchor_sink


class KVCache:
    """Keys and values of the sink (the reference image) and of a ring of recent chunks, for every layer.

    A layer's K and V are [sink_rows + ring * slot_rows, heads, head_dim]: the sink, then slots of one chunk each, and
    in a slot the chunk's tokens, of one batch row after another. The current chunk writes into the slot of the oldest
    one, so a step allocates, moves and rotates nothing of the past:

    - K is rotated once, when it is written. Keys that carry their rotation may stand in any order, so attention reads
      the ring as it lies.
    - If the sink is a chunk, the ring starts as copies of it, as if the character had held still before the session.
      Every step then has the same shapes. Else the ring fills up with the first chunks: see `filled`.
    - What follows in the sink keeps its distance to the current chunk: `prepare` turns its K to the new position.
    - The chunk's number lies on the device too. Cursor and angles are computed from it there, in float64, so one
      captured CUDA graph serves every chunk.
    - Nothing advances until `commit`. To repeat a step that failed, call `begin` again: a step overwrites its own slot
      and nothing else.
    - In a sequence group each rank keeps the heads that it attends with, of all rows.

    Args:
        layers, batch, heads, head_dim: sizes of the model, or of this GPU's part of it; heads are those of all ranks.
        sink: of the reference image; for a batch of more than one it is a chunk.
        ring: chunks, the current one among them.
        rope: tables for the model's token grid.
        dtype: of K, V and q: the model's own, or FP8.
        device: of the buffers.
        exchange: joins the ranks of a sequence group, which needs a batch of one; default: a group of one.
        scales: float32 [layers, 3, heads], of FP8 q, k and v.
        outputs: dtype of attention's output; FP8 if the next layer's scale is static.
        observe: record the largest magnitudes of q, k and v in `peaks`, float32 [layers, 3, heads].
        frames: latent frames of a chunk.
    """

    def __init__(
        self,
        *,
        layers: int,
        batch: int,
        heads: int,
        head_dim: int,
        sink: Sink,
        ring: int,
        rope: Rope3D,
        dtype: torch.dtype,
        device: torch.device | str,
        exchange: Exchange | None = None,
        scales: Tensor | None = None,
        outputs: torch.dtype | None = None,
        observe: bool = False,
        frames: int = 1,
    ) -> None:
        self.exchange: Exchange = exchange or LocalExchange(device)
        ranks, rank = self.exchange.size, self.exchange.rank
        assert batch == 1 or ranks == 1, "a sequence group takes one session"
        assert heads % ranks == 0, "the ranks of a sequence group share the heads evenly"
        assert batch == 1 or sink.is_chunk, "a batch starts from a chunk"
        self.sink, self.ring, self.rope, self.batch, self.frames = sink, ring, rope, batch, frames
        self.slot_rows, self.sink_rows = batch * frames * rope.tokens, batch * sink.tokens
        self.rows = shard_rows(self.slot_rows, ranks)
        self.index = 0
        self.prefilling = False
        slots, own = self.sink_rows + ring * self.slot_rows, heads // ranks
        self.own_heads = slice(rank * own, (rank + 1) * own)
        self.scales = scales
        self._key_scales = None if scales is None else scales[:, 1, self.own_heads].contiguous()
        # FP8 products need V's keys side by side. FlashAttention-3 transposes V itself and takes it only as rows.
        side_by_side = dtype == FP8 and "fa3" not in available_backends(device)
        aligned = self.slot_rows % ROW_MULTIPLE == 0 and self.sink_rows % ROW_MULTIPLE == 0
        self.values_transposed = side_by_side and aligned
        per_head = (own, head_dim, slots) if self.values_transposed else (slots, own, head_dim)
        share = self.exchange.share
        self._all_keys = share((layers, slots, own, head_dim), dtype)
        self._all_values = share((layers, *per_head), dtype)
        self._queries = share((ranks * self.rows, own, head_dim), dtype)
        self.outputs = share((self.rows, heads * head_dim), outputs or dtype)
        self._gathered: dict[tuple[int, torch.dtype], list[Tensor]] = {}
        # The sink's rows are computed once. The operation that writes its K before its rotation, not rounded as the
        # ring's is, writes q and V as well; these are dropped.
        raw = torch.bfloat16 if dtype == FP8 else dtype
        own_sink_rows = shard_rows(self.sink_rows, ranks)
        all_sink_rows = ranks * own_sink_rows
        self._sink_queries, self._sink_outputs = self._queries, self.outputs
        if own_sink_rows != self.rows:
            self._sink_queries = share((all_sink_rows, own, head_dim), dtype)
            self._sink_outputs = share((own_sink_rows, heads * head_dim), outputs or dtype)
        self._all_sink_keys = share((layers, self.sink_rows, own, head_dim), raw)
        self._dropped_queries = share((all_sink_rows, own, head_dim), raw)
        self._dropped_values = share((self.sink_rows, own, head_dim), raw)
        mine = rank % len(self._all_keys)
        self.keys, self.values, self.sink_keys = (
            x[mine] for x in (self._all_keys, self._all_values, self._all_sink_keys)
        )
        self.peaks = torch.zeros((layers, 3, own), device=device) if observe else None

        # All that a captured graph reads of the current chunk, computed on the device from the chunk's number: first
        # of the chunk's own frames, then of the sink's groups.
        self._index = torch.zeros((), dtype=torch.int64, device=device)
        self.cursor = torch.zeros((), dtype=torch.int64, device=device)
        own_frames = torch.arange(frames, dtype=torch.float64)
        moves = torch.cat((torch.ones(frames, dtype=torch.bool), sink.follows))
        self._times = torch.cat((own_frames, sink.times)).to(device)
        self._moves = (frames * moves.double()).to(device)
        self._time_freqs = rope.time_freqs.to(device)
        self._frame = self._own(torch.arange(frames).repeat_interleave(rope.tokens).repeat(batch)).to(device)
        self._follows = bool(sink.follows.any())
        self._group = frames + sink.group.repeat(batch).to(device)
        self.cos, self.sin = self._tables(rope.space.repeat(batch * frames, 1), device)
        self.sink_cos, self.sink_sin = self._tables(sink.space.repeat(batch, 1), device)
        self._turned = [torch.zeros((self.sink_rows, rope.time_pairs), device=device) for _ in range(2)]
        self._layers = [LayerCache(self, index) for index in range(layers)]

    def _own(self, x: Tensor) -> Tensor:
        """This rank's rows of a chunk or of the sink, the last rank's padded with zeros."""
        ranks, rank = self.exchange.size, self.exchange.rank
        rows = shard_rows(len(x), ranks)
        padding = x.new_zeros((ranks * rows - len(x), *x.shape[1:]))
        return torch.cat((x, padding))[rank * rows : (rank + 1) * rows]

    def _tables(self, space: Tensor, device: torch.device | str) -> tuple[Tensor, Tensor]:
        """cos, sin: float32 [own rows, pairs], at time 0, from angles of height and width."""
        angles = F.pad(self._own(space), (self.rope.time_pairs, 0))
        return angles.cos().float().to(device), angles.sin().float().to(device)

    @property
    def filled(self) -> int:
        """Rows that the current chunk attends to."""
        chunks = self.ring if self.sink.is_chunk else min(self.index + 1, self.ring)
        return self.sink_rows + (0 if self.prefilling else chunks * self.slot_rows)

    def slot(self, index: int) -> slice:
        """Rows of the ring that chunk `index` owns."""
        start = self.sink_rows + index % self.ring * self.slot_rows
        return slice(start, start + self.slot_rows)

    def prefill(self) -> None:
        """Start over: the pass until `seal` fills the sink, whose tokens all attend to one another."""
        self.prefilling = True
        self.index = 0

    def seal(self) -> None:
        """End the prefill: fill the ring with copies of the sink, if that is a chunk."""
        keys, values, sink = _bytes(self.keys), _bytes(self.values), slice(0, self.sink_rows)
        if self.values_transposed:
            values = values.permute(0, 3, 1, 2)
        for index in range(-self.ring, 0) if self.sink.is_chunk else ():
            slot, angles = self.slot(index), (self._time_freqs * index).expand(self.slot_rows, -1)
            keys[:, slot], values[:, slot] = keys[:, sink], values[:, sink]
            cos, sin = angles.cos().float().contiguous(), angles.sin().float().contiguous()
            anchor_sink(self.sink_keys, cos, sin, self.keys[:, slot], self._key_scales)
        self.exchange.settle()  # another rank may be at chunk 0 already
        self.prefilling = False
        self.index = 0

    def copy_sink(self, other: KVCache) -> None:
        """Take over the sink of a sealed cache of the same sizes, in place of a prefill."""
        rows = slice(0, self.sink_rows)
        _bytes(self.keys)[:, rows].copy_(_bytes(other.keys)[:, rows])
        across = (slice(None), slice(None), slice(None), rows) if self.values_transposed else (slice(None), rows)
        _bytes(self.values)[across].copy_(_bytes(other.values)[across])
        self.sink_keys.copy_(other.sink_keys)
        self.index = 0

    def begin(self) -> None:
        """Tell the device the number of the coming chunk. This is the only host work of a step."""
        self._index.fill_(self.index)

    def prepare(self) -> None:
        """Compute on the device: cursor and rotation of the chunk, and the sink's K at its new position."""
        angles = (self._times + self._index * self._moves)[:, None] * self._time_freqs
        pairs, cos, sin = self.rope.time_pairs, angles.cos().float(), angles.sin().float()
        if self.prefilling:
            self.cursor.zero_()
            for table, turned in ((self.sink_cos, cos), (self.sink_sin, sin)):
                table[:, :pairs] = turned[self._own(self._group)]
            return
        torch.add(self._index.remainder(self.ring) * self.slot_rows, self.sink_rows, out=self.cursor)
        self.cos[:, :pairs], self.sin[:, :pairs] = cos[self._frame], sin[self._frame]
        if self._follows:
            torch.index_select(cos, 0, self._group, out=self._turned[0])
            torch.index_select(sin, 0, self._group, out=self._turned[1])
            anchor_sink(self.sink_keys, *self._turned, self.keys[:, : self.sink_rows], self._key_scales)

    def commit(self) -> None:
        """Keep what the chunk's last pass wrote, and move on by one chunk."""
        self.index += 1

    def layer(self, index: int) -> LayerCache:
        """The part of the cache that belongs to one layer."""
        return self._layers[index]

    def own_rows(self, x: Tensor) -> Tensor:
        """This rank's rows of a chunk or of the sink: [tokens, channels] -> [rows, channels], padded with zeros."""
        return x if self.exchange.size == 1 else self._own(x)

    def own_frames(self) -> list[slice]:
        """See `Context.own_frames`; of a batch of one."""
        first, tokens = self.exchange.rank * self.rows, self.rope.tokens
        places = (frame * tokens - first for frame in range(self.frames + 1))
        edges = [min(max(place, 0), self.rows) for place in places]
        # Rows past the last frame are padding, which goes with it.
        edges[-1] = max(edges[-2], self.rows) if edges[-2] < self.rows else edges[-1]
        return [slice(*pair) for pair in itertools.pairwise(edges)]

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
        rows = list(zip(cache._all_keys, cache._all_values, strict=True))
        chunk, sink, raw = (
            zip(queries, written, strict=True)
            for queries, written in (
                (cache._queries, rows),
                (cache._sink_queries, rows),
                (cache._dropped_queries, zip(cache._all_sink_keys, cache._dropped_values, strict=True)),
            )
        )
        self._targets = [QkvTarget(q, k[index], v[index], cache.values_transposed) for q, (k, v) in chunk]
        self._sink_targets = [QkvTarget(q, k[index], v[index], cache.values_transposed) for q, (k, v) in sink]
        self._raw_targets = [QkvTarget(q, k[index], v) for q, (k, v) in raw]
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
        if cache.prefilling:
            projected = ProjectedQkv(qkv.flatten(0, -2), norm_q, norm_k, cache.sink_cos, cache.sink_sin)
            written = self._write_sink(projected)
        else:
            projected = ProjectedQkv(qkv.flatten(0, -2), norm_q, norm_k, cache.cos, cache.sin)
            place = {"cursor": cache.cursor, "tokens": cache.slot_rows}
            written = cache.exchange.write(projected, targets=self._targets, scales=self._scales, **place)
        q, keys, values = written.q, written.keys, written.values
        if written.values_transposed:
            values = values.permute(2, 0, 1)
        if cache.filled < len(keys):
            keys, values = keys[: cache.filled], values[: cache.filled]
        if cache.peaks is not None:
            for peak, x in zip(cache.peaks[self._index], (q, keys, values), strict=True):
                torch.maximum(peak, x.float().abs().amax((0, 2)), out=peak)
        if cache.batch == 1:
            o = attention(q, keys, values, scales=self._own_scales if self._scales is not None else None)
            return self._hand_back(o, to)
        operands = (self._batched(x, i, qkv.dtype) for i, x in enumerate((q, keys, values)))
        return store(attention(*operands), to)

    def _write_sink(self, projected: ProjectedQkv) -> QkvTarget:
        """The sink's rows twice: where attention reads them, and unrotated for `anchor_sink`."""
        cache = self._cache
        place = {"cursor": cache.cursor, "tokens": cache.sink_rows}
        written = cache.exchange.write(projected, targets=self._sink_targets, scales=self._scales, **place)
        straight = torch.ones_like(projected.cos), torch.zeros_like(projected.sin)
        cache.exchange.write(ProjectedQkv(*projected[:3], *straight), targets=self._raw_targets, **place)
        return written

    def _hand_back(self, o: Tensor, to: Precision) -> Tensor | Quantised:
        exchange = self._cache.exchange
        scale = to if isinstance(to, Tensor) else None
        if exchange.size == 1 and scale is None:
            return store(o, to)
        targets = self._cache._sink_outputs if self._cache.prefilling else self._cache.outputs
        rows = exchange.collect(o, scale, targets)
        return store(rows, to) if scale is None else Quantised(rows, scale)

    def _batched(self, x: Tensor, which: int, dtype: torch.dtype) -> Tensor:
        """[slots * batch * tokens, heads, head_dim] -> the values, [batch, slots * tokens, heads, head_dim]."""
        if self._scales is not None:
            x = (x.float() * self._scales[which][:, None]).to(dtype)
        tokens = self._cache.frames * self._cache.rope.tokens
        return x.unflatten(0, (-1, self._cache.batch, tokens)).transpose(0, 1).flatten(1, 2)


def _bytes(x: Tensor) -> Tensor:
    """FP8 as uint8, which every copy knows; other dtypes as they are."""
    return x.view(torch.uint8) if x.dtype == FP8 else x
