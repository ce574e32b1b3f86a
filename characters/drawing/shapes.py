"""Vectorised 2-D shapes: signed distances, soft coverage and colour arithmetic.

Everything is elementwise torch on tensors that broadcast to [N, H, W]; lengths are pixels, distances are negative
inside. Distances may be approximate: only the zero line and a slope near 1 around it matter.
"""

from __future__ import annotations

import torch
from torch import Tensor

EDGE = 1.3  # width of an anti-aliased edge in pixels


def cover(distance: Tensor, edge: float | Tensor = EDGE) -> Tensor:
    """Coverage in [0, 1] of a shape whose border is `edge` pixels wide, centred on distance 0."""
    return (distance * (-1 / edge)).add_(0.5).clamp_(0, 1)


def glow(distance: Tensor, edge: float | Tensor) -> Tensor:
    """Like `cover` with a smooth ramp, for wide shadows and lights."""
    ramp = cover(distance, edge)
    return ramp * ramp * (3 - 2 * ramp)


def smoothstep(value: Tensor, low: float, high: float) -> Tensor:
    """0 below `low`, 1 above `high`, smooth between."""
    ramp = ((value - low) / (high - low)).clamp(0, 1)
    return ramp * ramp * (3 - 2 * ramp)


def ellipse(x: Tensor, y: Tensor, radius_x: float | Tensor, radius_y: float | Tensor) -> Tensor:
    """Distance to an axis-aligned ellipse around the origin (first-order accurate at the border)."""
    p, q = x / radius_x, y / radius_y
    level = torch.sqrt(p * p + q * q + 1e-8)
    p, q = p / radius_x, q / radius_y
    return level * (level - 1) / torch.sqrt(p * p + q * q + 1e-8 / (radius_x * radius_y))


def circle(x: Tensor, y: Tensor, radius: float | Tensor) -> Tensor:
    """Distance to a circle around the origin."""
    return torch.sqrt(x * x + y * y + 1e-8) - radius


def box(x: Tensor, y: Tensor, half_x: float | Tensor, half_y: float | Tensor, corner: float | Tensor) -> Tensor:
    """Distance to a rounded rectangle around the origin."""
    p, q = x.abs() - half_x + corner, y.abs() - half_y + corner
    outside = torch.sqrt(p.clamp(min=0).square() + q.clamp(min=0).square() + 1e-8)
    return outside + torch.maximum(p, q).clamp(max=0) - corner


def superellipse(
    x: Tensor, y: Tensor, half_x: float | Tensor, half_y: float | Tensor, power: float | Tensor, scale: float | Tensor
) -> Tensor:
    """Approximate distance to |x/a|^n + |y/b|^n = 1; `scale` turns the level into pixels (about min(a, b))."""
    level = (x / half_x).abs().clamp(min=1e-4).pow(power) + (y / half_y).abs().clamp(min=1e-4).pow(power)
    return (level.pow(1 / power) - 1) * scale


def polygon(x: Tensor, y: Tensor, *corners: tuple[float | Tensor, float | Tensor]) -> Tensor:
    """Distance to a convex polygon; corners (x, y) run clockwise on the screen."""
    sides = []
    for (ax, ay), (bx, by) in zip(corners, corners[1:] + corners[:1], strict=True):
        ex, ey = torch.as_tensor(bx - ax), torch.as_tensor(by - ay)
        sides.append((ey * (x - ax) - ex * (y - ay)) / torch.sqrt(ex * ex + ey * ey))
    return torch.stack(torch.broadcast_tensors(*sides)).amax(0)


def capsule(x: Tensor, y: Tensor, half_length: float | Tensor, radius: float | Tensor) -> Tensor:
    """Distance to a horizontal rounded bar around the origin."""
    return torch.sqrt((x.abs() - half_length).clamp(min=0).square() + y * y + 1e-8) - radius


def smooth_min(a: Tensor, b: Tensor, width: float) -> Tensor:
    """Union of two distances with a fillet of about `width` pixels."""
    blend = (width - (a - b).abs()).clamp(min=0)
    return torch.minimum(a, b) - blend * blend / (4 * width)


def smooth_max(a: Tensor, b: Tensor, width: float) -> Tensor:
    """Intersection of two distances with corners rounded by about `width` pixels."""
    return -smooth_min(-a, -b, width)


def rotate(x: Tensor, y: Tensor, angle: float | Tensor) -> tuple[Tensor, Tensor]:
    """Coordinates in a frame turned by `angle` radians (clockwise on the screen, as y points down)."""
    angle = torch.as_tensor(angle, dtype=x.dtype, device=x.device)
    cos, sin = torch.cos(angle), torch.sin(angle)
    return cos * x + sin * y, cos * y - sin * x
