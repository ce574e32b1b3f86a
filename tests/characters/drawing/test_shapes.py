"""Distances: negative inside, zero on the line, slope near one."""

import math

import torch

from characters.drawing import shapes


def test_circle_ellipse_and_box() -> None:
    x, y = torch.tensor([0.0, 10.0, 14.0]), torch.zeros(3)
    torch.testing.assert_close(shapes.circle(x, y, 10.0), torch.tensor([-10.0, 0.0, 4.0]), atol=1e-3, rtol=0)
    on_line = shapes.ellipse(torch.tensor([20.0, 0.0]), torch.tensor([0.0, 5.0]), 20.0, 5.0)
    torch.testing.assert_close(on_line, torch.zeros(2), atol=1e-3, rtol=0)
    inside, outside = shapes.box(torch.tensor([0.0, 13.0]), torch.zeros(2), 10.0, 6.0, 2.0)
    assert inside < 0 and math.isclose(outside, 3.0, abs_tol=1e-3)


def test_polygon() -> None:
    corners = ((0.0, 0.0), (10.0, 0.0), (10.0, 10.0), (0.0, 10.0))
    x, y = torch.tensor([5.0, 13.0, 5.0]), torch.tensor([5.0, 5.0, -2.0])
    torch.testing.assert_close(shapes.polygon(x, y, *corners), torch.tensor([-5.0, 3.0, 2.0]))


def test_cover_and_glow() -> None:
    distance = torch.tensor([-50.0, 0.0, 50.0])
    for soft in (shapes.cover, shapes.glow):
        torch.testing.assert_close(soft(distance, 4.0), torch.tensor([1.0, 0.5, 0.0]))


def test_smooth_union_contains_both() -> None:
    a, b = torch.randn(100), torch.randn(100)
    assert (shapes.smooth_min(a, b, 1.0) <= torch.minimum(a, b)).all()
    assert (shapes.smooth_max(a, b, 1.0) >= torch.maximum(a, b)).all()
    torch.testing.assert_close(shapes.smooth_min(torch.zeros(1), torch.full((1,), 9.0), 2.0), torch.zeros(1))
