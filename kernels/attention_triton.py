"""Attention forward as one Triton kernel (online softmax: Milakov and Gimelshein 2018; Dao et al. 2022), any GPU.

Floating-point operands, or FP8 ones with a float32 scale a head. FP8 is multiplied as it is where the GPU can (Ada,
Hopper and later) and otherwise turned into float16 tile by tile, exactly. FP8 probabilities are kept as p * 2^8, so
that e4m3's range starts at 2^-17 of the largest.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.fp8 import FP8
from kernels.linear import has_fp8_products

_LOG2_E = math.log2(math.e)


@dataclass(frozen=True)
class Tiling:
    """How the kernel is cut and compiled.

    Attributes:
        rows: queries of a program.
        keys: keys of an iteration.
        warps, stages: of Triton.
        tma: load tiles by the tensor memory accelerator (Hopper and later) rather than by threads.
    """

    rows: int
    keys: int
    warps: int
    stages: int
    tma: bool


@functools.cache
def default_tiling(device: torch.device, head_dim: int, itemsize: int) -> Tiling:
    """Tiles that fit a device's shared memory and registers; itemsize: bytes of an operand's number."""
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)
    if capability == (0, 0):  # Triton's interpreter
        return Tiling(rows=32, keys=32, warps=4, stages=1, tma=True)
    if itemsize == 4:
        return Tiling(rows=64, keys=32, warps=4, stages=2, tma=capability >= (9, 0))
    if capability >= (9, 0):
        return Tiling(rows=128, keys=128 if itemsize == 1 or head_dim < 128 else 64, warps=8, stages=3, tma=True)
    # 99 KB (Ada) to 163 KB (A100) of shared memory.
    return Tiling(rows=128, keys=64, warps=8 if head_dim == 128 else 4, stages=2, tma=False)


def attend_triton(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_scale: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    *,
    tiling: Tiling | None = None,
) -> Tensor:
    """Softmax attention over all keys.

    Args:
        q: [tokens, heads, head_dim], head_dim 16, 32, 64 or 128, rows of heads * head_dim side by side; any row stride.
        k: [keys, heads, head_dim], likewise.
        v: [keys, heads, head_dim], likewise, or with the key axis contiguous (v.stride(0) == 1), which FP8 prefers.
        q_scale, k_scale, v_scale: float32 [heads] of FP8 operands.
        tiling: default: by device.

    Returns:
        [tokens, heads, head_dim], bfloat16 for FP8 operands, else q's dtype.

    Raises:
        ValueError: strides that the kernel doesn't take.
    """
    tokens, heads, head_dim = q.shape
    keys = k.shape[0]
    fp8 = q.dtype == FP8
    tiling = tiling or default_tiling(q.device, head_dim, q.element_size())
    # Tensor cores take FP8 products of 32 channels or more. The interpreter multiplies FP8 as it is.
    dequantise = fp8 and q.is_cuda and (not has_fp8_products(q.device) or q.shape[2] < 32)
    if dequantise:
        q, k, v = (x.view(torch.uint8) for x in (q, k, v))
    transposed = v.stride(0) == 1 and v.stride(2) != 1
    out = torch.empty((tokens, heads, head_dim), dtype=torch.bfloat16 if fp8 else q.dtype, device=q.device)
    ones = torch.ones(heads, device=q.device) if not fp8 else None
    q, k, v = _matrix("q", q, False), _matrix("k", k, False), _matrix("v", v, transposed)
    pitches = q.stride(0), k.stride(0), v.stride(0)
    if tiling.tma:
        q = TensorDescriptor.from_tensor(q, [tiling.rows, head_dim])
        k = TensorDescriptor.from_tensor(k, [tiling.keys, head_dim])
        v = TensorDescriptor.from_tensor(v, [head_dim, tiling.keys] if transposed else [tiling.keys, head_dim])
    _attend[(triton.cdiv(tokens, tiling.rows) * heads,)](
        q,
        k,
        v,
        out,
        *pitches,
        q_scale if fp8 else ones,
        k_scale if fp8 else ones,
        v_scale if fp8 else ones,
        _LOG2_E / math.sqrt(head_dim),
        tokens,
        keys,
        heads,
        HEAD_DIM=head_dim,
        ROWS=tiling.rows,
        KEYS=tiling.keys,
        TAIL=keys % tiling.keys != 0,
        SCALED=fp8,
        DEQUANTISE=dequantise,
        TRANSPOSED=transposed,
        TMA=tiling.tma,
        num_warps=tiling.warps,
        num_stages=tiling.stages,
    )
    return out


def _matrix(name: str, x: Tensor, transposed: bool) -> Tensor:
    """[rows, heads, head_dim] as [rows, heads * head_dim], or transposed as [heads * head_dim, rows]; a view."""
    pitch, columns, joined = x.stride(0), x.stride(2), x.stride(1) == x.shape[2]
    if transposed:
        pitch, columns, joined = x.stride(2), x.stride(0), x.stride(1) == x.shape[2] * x.stride(2)
    if columns != 1 or not joined or pitch * x.element_size() % 16 or x.data_ptr() % 16:
        raise ValueError(
            f"{name} must have its heads side by side and rows that start at multiples of 16 bytes, "
            f"got shape {tuple(x.shape)}, strides {x.stride()}"
        )
    return x.flatten(1).t() if transposed else x.flatten(1)


@triton.jit
def _from_e4m3(x):
    """e4m3 bytes as float16, exactly: move the bits up and correct the exponent's bias by 2^8."""
    bits = x.to(tl.uint16)
    return (((bits & 0x80) << 8) | ((bits & 0x7F) << 7)).to(tl.float16, bitcast=True) * 256.0


@triton.jit
def _tile(
    matrix, pitch, row, column, end,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, MASK: tl.constexpr, TMA: tl.constexpr, DEQUANTISE: tl.constexpr,
):  # fmt: skip
    """Load [ROWS, COLUMNS] at (row, column); zeros beyond `end` of the MASK axis (0 or 1; -1: the tile is whole)."""
    if TMA:
        x = matrix.load([row, column])
    else:
        rows, columns = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
        pointers = matrix + tl.cast(row, tl.int64) * pitch + column + rows[:, None] * pitch + columns[None, :]
        if MASK == 0:
            x = tl.load(pointers, mask=(row + rows < end)[:, None], other=0.0)
        elif MASK == 1:
            x = tl.load(pointers, mask=(column + columns < end)[None, :], other=0.0)
        else:
            x = tl.load(pointers)
    return _from_e4m3(x) if DEQUANTISE else x


@triton.jit
def _attend(
    q_matrix, k_matrix, v_matrix, out, q_pitch, k_pitch, v_pitch, q_scale, k_scale, v_scale, softmax_scale,
    tokens, keys, heads,
    HEAD_DIM: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, TAIL: tl.constexpr, SCALED: tl.constexpr,
    DEQUANTISE: tl.constexpr, TRANSPOSED: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """One block of queries of one head. Neighbouring programs share a head, hence its K and V in the L2 cache."""
    blocks = tl.cdiv(tokens, ROWS)
    head = tl.program_id(0) // blocks
    row = (tl.program_id(0) % blocks) * ROWS
    column = head * HEAD_DIM
    # float16 probabilities of dequantised tiles need no shift.
    SHIFT: tl.constexpr = 8.0 if SCALED and not DEQUANTISE else 0.0

    scale = softmax_scale
    if SCALED:
        scale *= tl.load(q_scale + head) * tl.load(k_scale + head)
    q = _tile(q_matrix, q_pitch, row, column, tokens, ROWS, HEAD_DIM, 0, TMA, DEQUANTISE)
    acc = tl.zeros([ROWS, HEAD_DIM], tl.float32)
    peak = tl.full([ROWS], float("-inf"), tl.float32)  # of the scaled logits so far, in octaves
    total = tl.zeros([ROWS], tl.float32)
    for start in tl.range(0, keys, KEYS):
        k = _tile(k_matrix, k_pitch, start, column, keys, KEYS, HEAD_DIM, 0 if TAIL else -1, TMA, DEQUANTISE)
        logits = tl.dot(q, k.T)
        if TAIL:
            logits = tl.where((start + tl.arange(0, KEYS) < keys)[None, :], logits, float("-inf"))
        if TRANSPOSED:
            v = _tile(v_matrix, v_pitch, column, start, keys, HEAD_DIM, KEYS, 1 if TAIL else -1, TMA, DEQUANTISE).T
        else:
            v = _tile(v_matrix, v_pitch, start, column, keys, KEYS, HEAD_DIM, 0 if TAIL else -1, TMA, DEQUANTISE)
        peak_now = tl.maximum(peak, tl.max(logits, 1) * scale)
        rest = tl.exp2(peak - peak_now)
        p = tl.exp2(logits * scale - (peak_now - SHIFT)[:, None])
        total = total * rest + tl.sum(p, 1)
        acc = tl.dot(p.to(v.dtype), v, acc * rest[:, None])
        peak = peak_now
    acc = acc / total[:, None]
    if SCALED:
        acc *= tl.load(v_scale + head)
    rows = row + tl.arange(0, ROWS)
    offsets = rows.to(tl.int64)[:, None] * (heads * HEAD_DIM) + column + tl.arange(0, HEAD_DIM)[None, :]
    tl.store(out + offsets, acc.to(out.dtype.element_ty), mask=(rows < tokens)[:, None])
