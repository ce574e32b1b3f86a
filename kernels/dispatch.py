"""What kernels share: Triton if it is installed, the choice between kernel and reference, alignment, stores."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl

    jit = triton.jit
except ModuleNotFoundError:  # a laptop without a GPU can import kernels, not run them
    triton = tl = None

    def jit(function):
        return function


# Bytes of the widest memory access of one thread.
WIDEST = 16


def takes_kernel(*tensors: Tensor | None) -> bool:
    """Whether Triton kernels can serve these tensors: on a GPU, contiguous, with gradients off."""
    return (
        triton is not None
        and not torch.is_grad_enabled()
        and all(x.is_cuda and x.is_contiguous() for x in tensors if x is not None)
    )


# A row of this many numbers keeps an SM busy; several programs of narrower rows share an SM.
_WIDE_ROW = 8192


def row_programs(device: torch.device, rows: int, width: int) -> int:
    """`persistent_programs` for rows whose tile is `width` numbers wide; no more than there are rows."""
    return min(rows, persistent_programs(device, max(1, _WIDE_ROW // width)))


@functools.cache
def persistent_programs(device: torch.device, an_sm: int) -> int:
    """How many programs to start if each goes over many rows and loads a row while it works on the one before.

    Args:
        device: that they run on. Triton's interpreter gets two, so that each has several rows there too.
        an_sm: how many of them share an SM.
    """
    return torch.cuda.get_device_properties(device).multi_processor_count * an_sm if device.type == "cuda" else 2


def common_alignment(*quantities: int) -> int:
    """The largest power of two up to WIDEST that divides all quantities (addresses, strides, offsets)."""
    return math.gcd(WIDEST, *quantities)


@jit
def saturate(x, dtype: tl.constexpr):
    """float32 x as dtype; FP8 saturates at its largest value."""
    if dtype == tl.float8e4nv:
        x = tl.clamp(x, -448.0, 448.0)
    return x.to(dtype)


@jit
def owned_pointers(bases, owner):
    """bases[owner] for a tuple of pointers, one a rank, and a tensor of ranks: memory of several GPUs in one store."""
    address = owner.to(tl.int64) * 0 + bases[0].to(tl.int64)
    for rank in tl.static_range(1, len(bases)):
        address = tl.where(owner == rank, bases[rank].to(tl.int64), address)
    return address.to(bases[0].dtype)
