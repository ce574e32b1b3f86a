"""Everything between the projection of a chunk's q, k and v and attention, done once, at write time.

RMS norm of q and k over the full width, rotary embedding, quantisation with a scale a head, and the layout that
attention reads: q beside the chunk's other rows, k and v in the ring of the KV cache. Heads are dealt to the ranks of a
sequence group. If the targets are memory of other GPUs, the write is also the exchange.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.dispatch import (
    common_alignment,
    jit,
    owned_pointers,
    row_programs,
    saturate,
    takes_kernel,
    tl,
    triton,
)
from kernels.fp8 import FP8, FP8_MAX

# Rows that a program works on or loads at a time.
STAGES = 4
WARPS = 8
# Tile of a transposed v, [rows, channels]: a program reads a full line of 128 bytes of each row, and writes one of each
# channel.
VALUE_TILE = (128, 64)


@dataclass(frozen=True)
class QkvTarget:
    """Where one rank keeps the heads that it attends with: `heads` of all heads / n. FP8 or bfloat16.

    Attributes:
        q: [n * rows, heads, head_dim], the chunk's queries.
        keys: [ring_rows, heads, head_dim], one layer's ring.
        values: [ring_rows, heads, head_dim], or [heads, head_dim, ring_rows] if `values_transposed`: the order that
            FP8 attention reads.
        values_transposed: the layout of values.
    """

    q: Tensor
    keys: Tensor
    values: Tensor
    values_transposed: bool = False


class ProjectedQkv(NamedTuple):
    """q, k and v of some rows of a chunk as their projection left them, and what norms and rotates them.

    Attributes:
        qkv: [rows, 3 * dim], q, k and v side by side.
        norm_q, norm_k: [dim], weights of the RMS norms.
        cos, sin: float32 [rows, head_dim / 2], rotation of these rows. With cos 1 and sin 0, K is written as
            `anchor_sink` takes it.
    """

    qkv: Tensor
    norm_q: Tensor
    norm_k: Tensor
    cos: Tensor
    sin: Tensor


class QkvScales(NamedTuple):
    """float32 [heads] each, over the heads of all ranks: value = data * scale."""

    q: Tensor
    k: Tensor
    v: Tensor


def write_qkv(
    x: ProjectedQkv,
    *,
    targets: Sequence[QkvTarget],
    cursor: Tensor,
    first_row: int,
    tokens: int,
    scales: QkvScales | None = None,
    eps: float = 1e-6,
) -> None:
    """Norm, rotate, quantise and write the q, k and v of some rows of a chunk.

    Row i of x is row first_row + i of the chunk: of target.q and, from `cursor` on, of target.keys and target.values.
    Rows from `tokens` on are padding: they reach q alone. Transposed values are written in pieces of 16 bytes if
    first_row, tokens and ring_rows are multiples of 16, and in smaller pieces otherwise.

    Args:
        x: the rows.
        targets: n, one a rank: rank r owns heads [r * heads / n, (r + 1) * heads / n).
        cursor: int64 scalar on the device, the chunk's first row in the ring, a multiple of `tokens`.
        first_row: of x within the chunk.
        tokens: rows of a chunk.
        scales: of FP8 targets; None for others.
        eps: of the norms.
    """
    function = write_qkv_triton if takes_kernel(*x, cursor) else write_qkv_reference
    function(x, targets=targets, cursor=cursor, first_row=first_row, tokens=tokens, scales=scales, eps=eps)


def write_qkv_reference(
    x: ProjectedQkv,
    *,
    targets: Sequence[QkvTarget],
    cursor: Tensor,
    first_row: int,
    tokens: int,
    scales: QkvScales | None = None,
    eps: float = 1e-6,
) -> None:
    """`write_qkv` in plain PyTorch, float32 inside."""
    head_dim = targets[0].q.shape[2]
    q, k, v = x.qkv.float().chunk(3, 1)
    q, k = (F.rms_norm(y, y.shape[1:], w.float(), eps) for y, w in ((q, x.norm_q), (k, x.norm_k)))
    q, k, v = (y.unflatten(1, (-1, head_dim)) for y in (q, k, v))
    q, k = rotate_pairs(q, x.cos, x.sin), rotate_pairs(k, x.cos, x.sin)
    if scales is not None:
        q, k, v = (y * scale.reciprocal()[:, None] for y, scale in zip((q, k, v), scales, strict=True))
    rows = len(x.qkv)
    kept = max(0, min(rows, tokens - first_row))
    ring = cursor + first_row + torch.arange(kept, device=x.qkv.device)
    for rank, target in enumerate(targets):
        heads = target.q.shape[1]
        own = slice(rank * heads, (rank + 1) * heads)
        target.q[first_row : first_row + rows] = _saturate(q[:, own], target.q.dtype)
        _put(target.keys, ring, _saturate(k[:kept, own], target.keys.dtype))
        values = target.values.permute(2, 0, 1) if target.values_transposed else target.values
        _put(values, ring, _saturate(v[:kept, own], values.dtype))


def write_qkv_triton(
    x: ProjectedQkv,
    *,
    targets: Sequence[QkvTarget],
    cursor: Tensor,
    first_row: int,
    tokens: int,
    scales: QkvScales | None = None,
    eps: float = 1e-6,
) -> None:
    """`write_qkv` by the kernel: contiguous tensors, head_dim a power of two, targets on any GPU within reach."""
    rows = len(x.qkv)
    heads, head_dim = targets[0].q.shape[1:]
    kept = max(0, min(rows, tokens - first_row))
    transposed = targets[0].values_transposed
    piece = common_alignment(
        head_dim * targets[0].q.element_size(),
        head_dim * targets[0].keys.element_size(),
        *(tensor.data_ptr() for target in targets for tensor in (target.q, target.keys, target.values)),
    )
    ring_stride = targets[0].values.stride(1) if transposed else 0
    # The rows of a transposed v lie side by side: this many can be written at a time.
    run = common_alignment(first_row, tokens, kept, ring_stride, *(target.values.data_ptr() for target in targets))
    q_scale, k_scale, v_scale = scales or (None, None, None)
    heads_block = triton.next_power_of_2(heads * len(targets))
    _write_qkv[(row_programs(x.qkv.device, rows, heads_block * head_dim), 3)](
        *x,
        q_scale,
        k_scale,
        v_scale,
        tuple(target.q for target in targets),
        tuple(target.keys for target in targets),
        tuple(target.values for target in targets),
        cursor,
        rows,
        first_row,
        kept // run,
        ring_stride,
        eps,
        HEADS=heads * len(targets),
        HEADS_BLOCK=heads_block,
        OWN_HEADS=heads,
        HEAD_DIM=head_dim,
        PIECE=piece,
        RUN=run,
        TRANSPOSED=transposed,
        VALUE_ROWS=VALUE_TILE[0],
        VALUE_CHANNELS=min(VALUE_TILE[1], head_dim),
        STAGES=STAGES,
        num_warps=WARPS,
    )


@jit
def _write_qkv(
    qkv,
    norm_q,
    norm_k,
    cos,
    sin,
    q_scale,
    k_scale,
    v_scale,
    q_out,
    k_out,
    v_out,
    cursor,
    rows,
    first_row,
    kept_runs,
    ring_stride,
    eps,
    HEADS: tl.constexpr,
    HEADS_BLOCK: tl.constexpr,
    OWN_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PIECE: tl.constexpr,
    RUN: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    VALUE_ROWS: tl.constexpr,
    VALUE_CHANNELS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Programs (i, 0), (i, 1) and (i, 2) write q, k and v. Rows up to kept_runs * RUN reach the ring.

    PIECE: bytes that divide the address of every head in every target. RUN: divides the ring's row numbers at which
    tiles of v begin and end.
    """
    part = tl.program_id(1)
    kept = kept_runs * RUN
    ring_row = tl.multiple_of(tl.load(cursor), RUN) + first_row
    if part == 0:
        _write_rows(
            qkv,
            norm_q,
            cos,
            sin,
            q_scale,
            q_out,
            rows,
            first_row,
            eps,
            HEADS,
            HEADS_BLOCK,
            OWN_HEADS,
            HEAD_DIM,
            PIECE,
            STAGES,
        )
    elif part == 1:
        _write_rows(
            qkv + HEADS * HEAD_DIM,
            norm_k,
            cos,
            sin,
            k_scale,
            k_out,
            kept,
            ring_row,
            eps,
            HEADS,
            HEADS_BLOCK,
            OWN_HEADS,
            HEAD_DIM,
            PIECE,
            STAGES,
        )
    else:
        values = qkv + 2 * HEADS * HEAD_DIM
        if TRANSPOSED:
            _transpose_values(
                values,
                v_scale,
                v_out,
                kept,
                ring_row,
                ring_stride,
                HEADS,
                OWN_HEADS,
                HEAD_DIM,
                RUN,
                VALUE_ROWS,
                VALUE_CHANNELS,
            )
        else:
            _write_rows(
                values,
                None,
                None,
                None,
                v_scale,
                v_out,
                kept,
                ring_row,
                eps,
                HEADS,
                HEADS_BLOCK,
                OWN_HEADS,
                HEAD_DIM,
                PIECE,
                STAGES,
            )


@jit
def _write_rows(
    source,
    norm,
    cos,
    sin,
    scale,
    bases,
    rows,
    out_row,
    eps,
    HEADS: tl.constexpr,
    HEADS_BLOCK: tl.constexpr,
    OWN_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PIECE: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Some rows of q, k or v, all heads: norm and rotate if there is a norm, quantise, write."""
    head = tl.arange(0, HEADS_BLOCK)[:, None]
    channel = tl.arange(0, HEAD_DIM)[None, :]
    inside = head < HEADS
    column = head * HEAD_DIM + channel
    owner = head // OWN_HEADS
    place = owned_pointers(bases, owner) + (head - owner * OWN_HEADS) * HEAD_DIM + channel
    if norm is not None:
        weight = tl.load(norm + column, inside, 0.0)
    factor = tl.full([HEADS_BLOCK, 1], 1.0, tl.float32)
    if scale is not None:
        factor = 1.0 / tl.load(scale + head, inside, 1.0)
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=STAGES):
        long_row = tl.full([], 0, tl.int64) + row
        x = tl.load(source + long_row * (3 * HEADS * HEAD_DIM) + column, inside, 0.0).to(tl.float32)
        if norm is None:
            x *= factor
        else:
            x *= weight.to(tl.float32) * (factor * tl.rsqrt(tl.sum(x * x) / (HEADS * HEAD_DIM) + eps))
            pair = row * (HEAD_DIM // 2) + tl.arange(0, HEAD_DIM // 2)[None, :]
            c, s = tl.load(cos + pair), tl.load(sin + pair)
            a, b = tl.split(tl.reshape(x, (HEADS_BLOCK, HEAD_DIM // 2, 2)))
            x = tl.reshape(tl.join(a * c - b * s, a * s + b * c), (HEADS_BLOCK, HEAD_DIM))
        target = tl.multiple_of(place + (out_row + long_row) * (OWN_HEADS * HEAD_DIM), (1, PIECE))
        tl.store(tl.max_contiguous(target, (1, 8)), saturate(x, bases[0].dtype.element_ty), inside)


@jit
def _transpose_values(
    source,
    scale,
    bases,
    kept,
    ring_row,
    ring_stride,
    HEADS: tl.constexpr,
    OWN_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    RUN: tl.constexpr,
    ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Some tiles of v, each of a single head: quantise, transpose, write."""
    tiles: tl.constexpr = HEADS * HEAD_DIM // CHANNELS
    for tile in tl.range(tl.program_id(0), tl.cdiv(kept, ROWS) * tiles, tl.num_programs(0)):
        row = (tile // tiles * ROWS + tl.arange(0, ROWS))[:, None]
        first_column = tile % tiles * CHANNELS
        column = (first_column + tl.arange(0, CHANNELS))[None, :]
        inside = row < kept
        x = tl.load(source + row.to(tl.int64) * (3 * HEADS * HEAD_DIM) + column, inside, 0.0).to(tl.float32)
        head = first_column // HEAD_DIM
        if scale is not None:
            x *= 1.0 / tl.load(scale + head)
        owner = head // OWN_HEADS
        own_column = column - owner * OWN_HEADS * HEAD_DIM
        place = owned_pointers(bases, owner) + own_column.to(tl.int64) * ring_stride + ring_row + row
        tl.store(tl.multiple_of(place, (RUN, 1)), saturate(x, bases[0].dtype.element_ty), inside)


def anchor_sink(sink_keys: Tensor, cos: Tensor, sin: Tensor, keys_out: Tensor, scale: Tensor | None = None) -> None:
    """Rotate the K of a sink chunk to its new place in time, in all layers; other channels of keys_out stay.

    Args:
        sink_keys: [layers, tokens, heads, head_dim], normalised, not rotated.
        cos, sin: float32 [tokens, pairs], pairs <= head_dim / 2: the first pairs of each head are rewritten. Those of
            time alone change from chunk to chunk.
        keys_out: [layers, tokens, heads, head_dim], the sink's rows of the ring.
        scale: float32 [layers, heads], of FP8 keys_out; None for others.
    """
    takes = takes_kernel(sink_keys[0], keys_out[0], scale)
    (anchor_sink_triton if takes else anchor_sink_reference)(sink_keys, cos, sin, keys_out, scale)


def anchor_sink_reference(
    sink_keys: Tensor, cos: Tensor, sin: Tensor, keys_out: Tensor, scale: Tensor | None = None
) -> None:
    """`anchor_sink` in plain PyTorch, float32 inside."""
    channels = 2 * cos.shape[-1]
    keys = rotate_pairs(sink_keys[..., :channels].float(), cos, sin)
    if scale is not None:
        keys = keys * scale.reciprocal()[:, None, :, None]
    keys_out[..., :channels] = _saturate(keys, keys_out.dtype)


def anchor_sink_triton(
    sink_keys: Tensor, cos: Tensor, sin: Tensor, keys_out: Tensor, scale: Tensor | None = None
) -> None:
    """`anchor_sink` by the kernel: each layer contiguous, in both; cos and sin with the same strides."""
    layers, tokens, heads, head_dim = sink_keys.shape
    pairs = cos.shape[1]
    _anchor_sink[(tokens, layers)](
        sink_keys,
        cos,
        sin,
        keys_out,
        scale,
        cos.stride(0),
        sink_keys.stride(0),
        keys_out.stride(0),
        HEADS=heads,
        HEADS_BLOCK=triton.next_power_of_2(heads),
        HEAD_DIM=head_dim,
        PAIRS=pairs,
        PAIRS_BLOCK=triton.next_power_of_2(pairs),
        num_warps=4,
    )


@jit
def _anchor_sink(
    sink_keys,
    cos,
    sin,
    keys_out,
    scale,
    cos_stride,
    sink_stride,
    out_stride,
    HEADS: tl.constexpr,
    HEADS_BLOCK: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAIRS: tl.constexpr,
    PAIRS_BLOCK: tl.constexpr,
):
    """One token of one layer a program."""
    token, layer = tl.program_id(0), tl.program_id(1)
    head = tl.arange(0, HEADS_BLOCK)[:, None]
    channel = tl.arange(0, 2 * PAIRS_BLOCK)[None, :]
    inside = (head < HEADS) & (channel < 2 * PAIRS)
    column = (token * HEADS + head) * HEAD_DIM + channel
    x = tl.load(sink_keys + layer.to(tl.int64) * sink_stride + column, inside, 0.0).to(tl.float32)
    pair = tl.arange(0, PAIRS_BLOCK)[None, :]
    c = tl.load(cos + token * cos_stride + pair, pair < PAIRS, 0.0)
    s = tl.load(sin + token * cos_stride + pair, pair < PAIRS, 0.0)
    a, b = tl.split(tl.reshape(x, (HEADS_BLOCK, PAIRS_BLOCK, 2)))
    x = tl.reshape(tl.join(a * c - b * s, a * s + b * c), (HEADS_BLOCK, 2 * PAIRS_BLOCK))
    if scale is not None:
        x *= 1.0 / tl.load(scale + layer * HEADS + head, head < HEADS, 1.0)
    tl.store(keys_out + layer.to(tl.int64) * out_stride + column, saturate(x, keys_out.dtype.element_ty), inside)


def rotate_pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate neighbouring pairs of channels: x [..., tokens, heads, 2 * pairs], cos and sin [tokens, pairs]."""
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


def _saturate(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.clamp(-FP8_MAX, FP8_MAX).to(dtype) if dtype == FP8 else x.to(dtype)


def _put(ring: Tensor, rows: Tensor, values: Tensor) -> None:
    """ring[rows] = values; FP8 as bytes, which index_put knows."""
    if ring.dtype == FP8:
        ring, values = ring.view(torch.uint8), values.view(torch.uint8)
    ring[rows] = values
