"""Colours of generated frames held to those of the portrait: mean and spread of each channel in CIE Lab.

Source: Reinhard et al., Color Transfer between Images (2001), in CIE 1976 L*a*b* (D65, 2 degrees, sRGB). Nothing is
decided on the host, so that all of it can stand in a captured graph.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Linear sRGB to XYZ (IEC 61966-2-1), and the white of D65.
_TO_XYZ = ((0.412453, 0.357580, 0.180423), (0.212671, 0.715160, 0.072169), (0.019334, 0.119193, 0.950227))
_WHITE = (0.95047, 1.0, 1.08883)
_EPSILON, _SLOPE, _OFFSET = 0.008856, 7.787, 16 / 116


class LabMatch:
    """Matches frames to a picture.

    Args:
        picture: float [3, H, W] in [0, 1], sRGB.
    """

    def __init__(self, picture: Tensor) -> None:
        self._mean, self._spread = _statistics(to_lab(picture[None]))

    def __call__(self, frames: Tensor) -> Tensor:
        """float [n, 3, H, W] in [0, 1] -> the same shape, clamped to [0, 1]; each frame is matched on its own."""
        lab = to_lab(frames)
        mean, spread = _statistics(lab)
        return to_rgb((lab - mean) / (spread + 1e-6) * self._spread + self._mean)


def to_lab(rgb: Tensor) -> Tensor:
    """sRGB in [0, 1], [n, 3, H, W] -> float32 Lab; L in [0, 100]."""
    rgb = rgb.float()
    linear = torch.where(rgb > 0.04045, ((rgb + 0.055) / 1.055).clamp_min(0) ** 2.4, rgb / 12.92)
    xyz = torch.einsum("ij,njhw->nihw", linear.new_tensor(_TO_XYZ), linear) / _white(linear)
    xyz = xyz.clamp(1e-8, 1.0)
    f = torch.where(xyz > _EPSILON, xyz ** (1 / 3), _SLOPE * xyz + _OFFSET)
    x, y, z = f.unbind(1)
    return torch.stack((116 * y - 16, 500 * (x - y), 200 * (y - z)), 1)


def to_rgb(lab: Tensor) -> Tensor:
    """Inverse of `to_lab`, clamped to [0, 1]."""
    lightness, a, b = lab.unbind(1)
    y = (lightness + 16) / 116
    f = torch.stack((y + a / 500, y, (y - b / 200)), 1)
    xyz = torch.where(f > 0.2068966, f**3, (f - _OFFSET) / _SLOPE)
    xyz = xyz * _white(lab)
    inverse = torch.linalg.inv(torch.tensor(_TO_XYZ, dtype=torch.float64)).to(lab.device, torch.float32)
    linear = torch.einsum("ij,njhw->nihw", inverse, xyz)
    rgb = torch.where(linear > 0.0031308, 1.055 * linear.clamp_min(1e-12) ** (1 / 2.4) - 0.055, 12.92 * linear)
    return rgb.clamp(0, 1)


def _white(like: Tensor) -> Tensor:
    return like.new_tensor(_WHITE)[:, None, None]


def _statistics(lab: Tensor) -> tuple[Tensor, Tensor]:
    return lab.mean((2, 3), keepdim=True), lab.std((2, 3), correction=0, keepdim=True)
