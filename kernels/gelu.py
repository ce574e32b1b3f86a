"""GELU, tanh form (Hendrycks and Gimpel 2016), with the quantisation of its result."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.dispatch import jit, saturate, takes_kernel, tl, triton
from kernels.fp8 import FP8, FP8_MAX, TINY, Precision, Quantised, store

# Numbers that one program of the elementwise kernel takes, and its warps: two 16-byte loads a thread.
BLOCK, WARPS = 2048, 4


def gelu(x: Tensor, to: Precision = None) -> Tensor | Quantised:
    """GELU of x [..., width]; `to` says how the result is stored.

    The kernel serves [rows, width] on a GPU with gradients off, and computes in float32.
    """
    takes = x.dim() == 2 and takes_kernel(x)
    return (gelu_triton if takes else gelu_reference)(x, to)


def gelu_reference(x: Tensor, to: Precision = None) -> Tensor | Quantised:
    """`gelu` in plain PyTorch, differentiable."""
    return store(F.gelu(x, approximate="tanh"), to)


def gelu_triton(x: Tensor, to: Precision = None) -> Tensor | Quantised:
    """`gelu` by the kernels: x [rows, width], contiguous."""
    rows, width = x.shape
    out = torch.empty_like(x, dtype=x.dtype if to is None else FP8)
    if isinstance(to, str):
        scale = x.new_empty((rows, 1), dtype=torch.float32)
        block = triton.next_power_of_2(width)
        warps = min(max(block // 1024, 1), 32)
        _gelu_rows[(rows,)](x, out, scale, WIDTH=width, BLOCK=block, FP8_MAX=FP8_MAX, TINY=TINY, num_warps=warps)
        return Quantised(out, scale)
    _gelu[(triton.cdiv(x.numel(), BLOCK),)](x, out, to, x.numel(), BLOCK=BLOCK, num_warps=WARPS)
    return out if to is None else Quantised(out, to)


@jit
def _gelu_of(x):
    """x * sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3): exact also at negative x, where 1 + tanh(u) cancels.

    Powers of two, and a squared rsqrt as the reciprocal, take two thirds of the instructions of exp and division. With
    those the arithmetic would take longer than the memory traffic.
    """
    root = tl.rsqrt(1.0 + tl.exp2(x * (-2.302208198144325 - 0.1029432395800235 * (x * x))))
    return x * root * root


@jit
def _gelu(x, out, scale, count, BLOCK: tl.constexpr):
    """Element by element; `scale` is a scalar in memory, or None."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    value = _gelu_of(tl.load(x + place, inside, 0.0).to(tl.float32))
    if scale is not None:
        value *= 1.0 / tl.load(scale)
    tl.store(tl.max_contiguous(out + place, 8), saturate(value, out.dtype.element_ty), inside)


@jit
def _gelu_rows(x, out, scale, WIDTH: tl.constexpr, BLOCK: tl.constexpr, FP8_MAX: tl.constexpr, TINY: tl.constexpr):
    """One row a program, held in registers until its largest magnitude is known."""
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    place = row.to(tl.int64) * WIDTH + columns
    value = _gelu_of(tl.load(x + place, inside, 0.0).to(tl.float32))
    step = tl.maximum(tl.max(tl.abs(value), 0), TINY) / FP8_MAX
    tl.store(scale + row, step)
    tl.store(tl.max_contiguous(out + place, 8), saturate(value * (1.0 / step), out.dtype.element_ty), inside)
