"""Eight-bit floating point (e4m3) with float32 scales: what matrix products and attention take on Hopper GPUs."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

FP8 = torch.float8_e4m3fn
FP8_MAX = 448.0

# The smallest magnitude that a scale is taken from: a row of zeros must not lead to a division by zero.
TINY = 1e-12

# How a result is stored: None = in the input's dtype; a float32 scalar tensor = FP8 with that scale, known beforehand;
# "rows" = FP8 with the scale of each row taken from the row itself.
Precision: TypeAlias = Tensor | Literal["rows"] | None


class Quantised(NamedTuple):
    """A tensor in FP8; its value is `data * scale`.

    Attributes:
        data: FP8, any shape.
        scale: float32, broadcasts against data: a scalar [] (static) or [..., 1] (one a row, dynamic).
    """

    data: Tensor
    scale: Tensor


def quantise(x: Tensor, scale: Tensor) -> Quantised:
    """Round x / scale to FP8. Values beyond the range saturate; a bare cast would make them NaN."""
    return Quantised((x.float() * scale.reciprocal()).clamp(-FP8_MAX, FP8_MAX).to(FP8), scale)


def quantise_rows(x: Tensor) -> Quantised:
    """Quantise so that the largest magnitude of each row [..., :] becomes the largest of FP8."""
    return quantise(x, x.detach().float().abs().amax(-1, keepdim=True).clamp_min(TINY) / FP8_MAX)


def dequantise(x: Quantised) -> Tensor:
    """The values of a quantised tensor, float32."""
    return x.data.float() * x.scale


def store(x: Tensor, to: Precision) -> Tensor | Quantised:
    """x stored as `to` says: x itself, or `Quantised`."""
    if to is None:
        return x
    return quantise_rows(x) if isinstance(to, str) else quantise(x, to)
