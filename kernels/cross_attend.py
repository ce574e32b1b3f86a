"""Cross-attention of a chunk to its few condition tokens: RMS norm of q, attention and quantisation in one pass.

Memory sets the pace: the kernel reads q, writes the result and computes little in between. Only the norm needs all
heads of a row at once. It is one number a row, and a first pass computes it.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.attention import attend
from kernels.dispatch import jit, persistent_programs, saturate, takes_kernel, tl, triton
from kernels.fp8 import FP8, Precision, Quantised, store

# Queries and most keys of a tile, warps, and registers of a thread: three programs share an SM of Hopper.
ROWS, KEYS, WARPS, REGISTERS, PROGRAMS = 64, 64, 4, 168, 3
# Stages of the loop over tiles of queries.
STAGES = 2

# A tile of one head is a power of two wide, and no wider than registers allow.
_HEAD_DIMS = (16, 32, 64, 128)

_LOG2_E = math.log2(math.e)


def cross_attend(
    q: Tensor, norm: Tensor, k: Tensor, v: Tensor, *, eps: float = 1e-6, to: Precision = None
) -> Tensor | Quantised:
    """Attend from rms_norm(q) * norm, over the full width, to all keys; logits / sqrt(head_dim).

    The kernel serves a batch of one in bfloat16 or float16 on a GPU with gradients off.

    Args:
        q: [rows, heads * head_dim], or [batch, rows, heads * head_dim]: not normed.
        norm: [heads * head_dim], weight of the norm.
        k, v: [keys, heads, head_dim], or [batch, keys, heads, head_dim]; k is normed already. With q of two axes they
            may be [frames, keys, heads, head_dim]: q has the rows of one frame after another, and those of a frame
            attend to its keys alone.
        eps: of the norm.
        to: how the result is stored; see `Precision`.

    Returns:
        Like q, or `Quantised`.
    """
    takes = q.dim() == 2 and q.dtype in (torch.bfloat16, torch.float16) and k.shape[-1] in _HEAD_DIMS
    kernel = takes and q.dtype == k.dtype == v.dtype and takes_kernel(q, norm, k, v)
    return (cross_attend_triton if kernel else cross_attend_reference)(q, norm, k, v, eps=eps, to=to)


def cross_attend_reference(
    q: Tensor, norm: Tensor, k: Tensor, v: Tensor, *, eps: float = 1e-6, to: Precision = None
) -> Tensor | Quantised:
    """`cross_attend` in plain PyTorch, differentiable."""
    if q.dim() < k.dim() - 1:
        return store(_attend_batch(q.unflatten(0, (len(k), -1)), norm, k, v, eps).flatten(0, 1), to)
    if q.dim() == 3:
        return store(_attend_batch(q, norm, k, v, eps), to)
    q = F.rms_norm(q, q.shape[-1:], norm, eps).unflatten(-1, k.shape[-2:])
    return store(attend(q, k, v).flatten(1), to)


def _attend_batch(q: Tensor, norm: Tensor, k: Tensor, v: Tensor, eps: float) -> Tensor:
    q = F.rms_norm(q, q.shape[-1:], norm, eps).unflatten(-1, k.shape[-2:])
    out = F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)))
    return out.transpose(1, 2).flatten(2)


def cross_attend_triton(
    q: Tensor, norm: Tensor, k: Tensor, v: Tensor, *, eps: float = 1e-6, to: Precision = None
) -> Tensor | Quantised:
    """`cross_attend` by the kernels: contiguous tensors on one device, q [rows, heads * head_dim]."""
    (rows, dim), (keys, heads, head_dim) = q.shape, k.shape[-3:]
    frames = 1 if k.dim() == 3 else len(k)
    # A scale that is taken from a row needs the row's whole result: `store` applies it afterwards.
    scale = to if isinstance(to, Tensor) else None
    out = torch.empty_like(q, dtype=q.dtype if scale is None else FP8)
    inverse_rms = q.new_empty(rows, dtype=torch.float32)
    block = triton.next_power_of_2(dim)
    _cross_attend_rms[(rows,)](q, inverse_rms, eps, DIM=dim, BLOCK=block, num_warps=min(max(block // 1024, 1), 16))
    tile = min(KEYS, max(16, triton.next_power_of_2(keys)))
    groups = heads * frames
    programs = max(1, persistent_programs(q.device, PROGRAMS) // groups)  # of a head in a frame
    _cross_attend[(min(programs, triton.cdiv(rows // frames, ROWS)) * groups,)](
        q,
        inverse_rms,
        norm,
        k,
        v,
        scale,
        out,
        rows // frames,
        keys,
        _LOG2_E / math.sqrt(head_dim),
        HEADS=heads,
        FRAMES=frames,
        HEAD_DIM=head_dim,
        ROWS=ROWS,
        KEYS=tile,
        FEW=keys <= tile,
        STAGES=STAGES,
        num_warps=WARPS,
        num_stages=1,
        maxnreg=REGISTERS,
    )
    return store(out, to) if scale is None else Quantised(out, scale)


@jit
def _cross_attend_rms(q, inverse_rms, eps, DIM: tl.constexpr, BLOCK: tl.constexpr):
    """1 / RMS of one row a program."""
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    x = tl.load(q + row.to(tl.int64) * DIM + columns, columns < DIM, 0.0).to(tl.float32)
    tl.store(inverse_rms + row, tl.rsqrt(tl.sum(x * x, 0) / DIM + eps))


@jit
def _cross_attend(
    q,
    inverse_rms,
    norm,
    k,
    v,
    scale,
    out,
    rows,
    keys,
    softmax_scale,
    HEADS: tl.constexpr,
    FRAMES: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    FEW: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Some tiles of queries of one head in one frame of `rows` rows; `scale` is a scalar in memory, or None.

    FEW: one tile holds all keys; a program loads them once. The last rows come first: the pass before has left these
    rows of q in the L2 cache.
    """
    group = tl.program_id(0) % (HEADS * FRAMES)
    program = tl.program_id(0) // (HEADS * FRAMES)
    programs = tl.num_programs(0) // (HEADS * FRAMES)
    head = group % HEADS
    if FRAMES > 1:
        frame = group // HEADS
        k += frame * keys * HEADS * HEAD_DIM
        v += frame * keys * HEADS * HEAD_DIM
        q += frame.to(tl.int64) * rows * HEADS * HEAD_DIM
        out += frame.to(tl.int64) * rows * HEADS * HEAD_DIM
        inverse_rms += frame * rows
    channel = head * HEAD_DIM + tl.arange(0, HEAD_DIM)
    weight = tl.load(norm + channel).to(tl.float32)[None, :] * softmax_scale
    factor = 1.0
    if scale is not None:
        factor /= tl.load(scale)
    key = tl.arange(0, KEYS)
    source = key[:, None] * (HEADS * HEAD_DIM) + channel[None, :]
    if FEW:
        told, value = tl.load(k + source, (key < keys)[:, None], 0.0), tl.load(v + source, (key < keys)[:, None], 0.0)
    tiles = tl.cdiv(rows, ROWS)
    for tile in tl.range(program, tiles, programs, num_stages=STAGES):
        row = (tiles - 1 - tile) * ROWS + tl.arange(0, ROWS)
        inside = row < rows
        place = row.to(tl.int64)[:, None] * (HEADS * HEAD_DIM) + channel[None, :]
        x = tl.load(q + place, inside[:, None], 0.0).to(tl.float32)
        x *= tl.load(inverse_rms + row, inside, 0.0)[:, None] * weight
        x = x.to(k.dtype.element_ty)
        acc = tl.zeros([ROWS, HEAD_DIM], tl.float32)
        peak = tl.full([ROWS], float("-inf"), tl.float32)  # of the logits so far, in octaves
        total = tl.zeros([ROWS], tl.float32)
        if FEW:
            acc, peak, total = _meet(x, told, value, key < keys, acc, peak, total)
        else:
            for start in range(0, keys, KEYS):
                real = start + key < keys
                place_k = start * (HEADS * HEAD_DIM) + source
                told = tl.load(k + place_k, real[:, None], 0.0)
                value = tl.load(v + place_k, real[:, None], 0.0)  # here, so that the two loads overlap
                acc, peak, total = _meet(x, told, value, real, acc, peak, total)
        acc *= (factor / total)[:, None]
        tl.store(tl.max_contiguous(out + place, (1, 8)), saturate(acc, out.dtype.element_ty), inside[:, None])


@jit
def _meet(x, told, value, real, acc, peak, total):
    """Attend to one tile of keys: online softmax (Milakov and Gimelshein 2018) in octaves."""
    logits = tl.where(real[None, :], tl.dot(x, tl.trans(told)), float("-inf"))
    higher = tl.maximum(peak, tl.max(logits, 1))
    weight = tl.exp2(logits - higher[:, None])
    fade = tl.exp2(peak - higher)
    total = total * fade + tl.sum(weight, 1)
    acc = tl.dot(weight.to(value.dtype), value, acc * fade[:, None])
    return acc, higher, total
