"""Comparison of FP8 tensors, in steps between neighbouring numbers."""

import torch
from torch import Tensor

from kernels.fp8 import FP8


def steps(a: Tensor, b: Tensor) -> Tensor:
    """Representable FP8 numbers from a to b, elementwise; zero has two signs and counts once."""

    def rank(x: Tensor) -> Tensor:
        bits = x.contiguous().view(torch.uint8).int()
        return torch.where(bits < 128, bits, 128 - bits)

    return (rank(a) - rank(b)).abs()


def assert_same_fp8(a: Tensor, b: Tensor, share: float = 0.01) -> None:
    """Equal up to one step, and that only in a small share of the elements: sums in another order move a few."""
    assert a.dtype == b.dtype == FP8
    assert a.shape == b.shape
    difference = steps(a, b)
    assert difference.max() <= 1
    assert (difference > 0).float().mean() <= share
