"""The operation between two branches of a transformer block: residual, layer norm, modulation and quantisation."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.dispatch import jit, row_programs, saturate, takes_kernel, tl, triton
from kernels.fp8 import FP8, FP8_MAX, TINY, Precision, Quantised, store

# Numbers of a row that one thread holds; rows that a program works on or loads at a time.
PER_THREAD = 32
STAGES = 3


def residual_norm(
    x: Tensor,
    branch: Tensor | None = None,
    gate: Tensor | None = None,
    *,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
    eps: float = 1e-6,
    to: Precision = None,
) -> tuple[Tensor, Tensor | Quantised]:
    """Add a branch to the residual stream and normalise the sum for the next branch (adaLN, Peebles and Xie 2023).

    x_new = x + gate * branch; h = layer_norm(x_new) * weight + bias; then h * (1 + scale) + shift.

    The kernel serves [rows, dim] on a GPU with gradients off. It overwrites x with x_new and computes in float32; the
    reference leaves x alone and computes in x's dtype, as `nn.LayerNorm` and its neighbours would.

    Args:
        x: [..., dim], the residual stream.
        branch: like x; None = nothing to add, x_new is x.
        gate: [dim], or [batch, 1, dim] for x [batch, tokens, dim]; None = 1.
        weight, bias: [dim], affine part of the norm; both or neither.
        scale, shift: like gate, modulation; both or neither.
        eps: of the norm.
        to: how h is stored; see `Precision`.

    Returns:
        x_new like x, and h: like x, or `Quantised`.
    """
    takes = x.dim() == 2 and takes_kernel(x, branch, gate, weight, bias, scale, shift)
    function = residual_norm_triton if takes else residual_norm_reference
    return function(x, branch, gate, weight=weight, bias=bias, scale=scale, shift=shift, eps=eps, to=to)


def residual_norm_reference(
    x: Tensor,
    branch: Tensor | None = None,
    gate: Tensor | None = None,
    *,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
    eps: float = 1e-6,
    to: Precision = None,
) -> tuple[Tensor, Tensor | Quantised]:
    """`residual_norm` in plain PyTorch, differentiable."""
    if branch is not None:
        x = x + (branch if gate is None else gate * branch)
    h = F.layer_norm(x, x.shape[-1:], weight, bias, eps)
    if scale is not None:
        h = h * (1 + scale) + shift
    return x, store(h, to)


def residual_norm_triton(
    x: Tensor,
    branch: Tensor | None = None,
    gate: Tensor | None = None,
    *,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
    eps: float = 1e-6,
    to: Precision = None,
) -> tuple[Tensor, Tensor | Quantised]:
    """`residual_norm` by the kernel: contiguous tensors on one device, x [rows, dim], vectors of dim numbers."""
    rows, dim = x.shape
    dynamic = isinstance(to, str)
    h = torch.empty_like(x, dtype=x.dtype if to is None else FP8)
    h_scale = x.new_empty((rows, 1), dtype=torch.float32) if dynamic else to
    block = triton.next_power_of_2(dim)
    _residual_norm[(row_programs(x.device, rows, block),)](
        x,
        branch,
        gate,
        weight,
        bias,
        scale,
        shift,
        h,
        h_scale,
        rows,
        eps,
        DIM=dim,
        BLOCK=block,
        DYNAMIC=dynamic,
        FP8_MAX=FP8_MAX,
        TINY=TINY,
        STAGES=STAGES,
        num_warps=min(max(block // (32 * PER_THREAD), 1), 32),
    )
    return x, h if to is None else Quantised(h, h_scale)


@jit
def _residual_norm(
    x,
    branch,
    gate,
    weight,
    bias,
    scale,
    shift,
    h,
    h_scale,
    rows,
    eps,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    DYNAMIC: tl.constexpr,
    FP8_MAX: tl.constexpr,
    TINY: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Every n-th row, n the number of programs; a row stays in registers from its load to its store."""
    columns = tl.arange(0, BLOCK)
    inside = columns < DIM
    if gate is not None:
        gates = tl.load(gate + columns, inside, 0.0)
    if weight is not None:
        weights, biases = tl.load(weight + columns, inside, 0.0), tl.load(bias + columns, inside, 0.0)
    if scale is not None:
        scales, shifts = tl.load(scale + columns, inside, 0.0), tl.load(shift + columns, inside, 0.0)
    if h_scale is not None and not DYNAMIC:
        steps = 1.0 / tl.load(h_scale)
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=STAGES):
        place = (tl.full([], 0, tl.int64) + row) * DIM + columns
        value = tl.load(x + place, inside, 0.0).to(tl.float32)
        if branch is not None:
            added = tl.load(branch + place, inside, 0.0).to(tl.float32)
            if gate is not None:
                added *= gates.to(tl.float32)
            value += added
            tl.store(x + place, value.to(x.dtype.element_ty), inside)
        mean = tl.sum(value, 0) / DIM
        value = tl.where(inside, value - mean, 0.0)
        value *= tl.rsqrt(tl.sum(value * value, 0) / DIM + eps)
        if weight is not None:
            value = value * weights.to(tl.float32) + biases.to(tl.float32)
        if scale is not None:
            value = value * (1.0 + scales.to(tl.float32)) + shifts.to(tl.float32)
        if DYNAMIC:
            step = tl.maximum(tl.max(tl.abs(value), 0), TINY) / FP8_MAX
            tl.store(h_scale + row, step)
            value *= 1.0 / step
        elif h_scale is not None:
            value *= steps
        tl.store(tl.max_contiguous(h + place, 8), saturate(value, h.dtype.element_ty), inside)
