"""I420 against the standard's formulas in float64; the kernel against the reference."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernels.i420 import (
    rgb_to_i420,
    signal_to_i420,
    signal_to_i420_reference,
    signal_to_i420_triton,
    signal_to_rgb,
)


def reference(rgb: np.ndarray) -> np.ndarray:
    """uint8 [H, W, 3] -> uint8 [H * 3 / 2, W] in float64, by Rec. ITU-R BT.709-6, items 3.2 to 3.4, for 8 bits."""
    height, width, _ = rgb.shape

    def differences(levels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        red, _, blue = np.moveaxis(levels, -1, 0)
        luma = levels @ [0.2126, 0.7152, 0.0722]
        return luma, (blue - luma) / 1.8556, (red - luma) / 1.5748

    levels = rgb / 255.0
    luma = differences(levels)[0]
    _, blue, red = differences(levels.reshape(height // 2, 2, width // 2, 2, 3).mean((1, 3)))
    planes = 219 * luma + 16, 224 * blue + 128, 224 * red + 128
    return np.concatenate([plane.ravel() for plane in planes]).round().astype(np.uint8).reshape(-1, width)


def smooth(height: int, width: int) -> np.ndarray:
    y, x = np.mgrid[:height, :width]
    channels = [127 + 120 * np.sin(x / 40 + k) * np.cos(y / (50 - 10 * k)) for k in range(3)]
    return np.stack(channels, -1).astype(np.uint8)


@pytest.mark.parametrize(
    "colour, expected",
    [
        ((0, 0, 0), (16, 128, 128)),
        ((255, 255, 255), (235, 128, 128)),
        ((255, 0, 0), (63, 102, 240)),
        ((0, 255, 0), (173, 42, 26)),
        ((0, 0, 255), (32, 240, 118)),
        ((128, 128, 128), (126, 128, 128)),
    ],
)
def test_flat_colours(colour: tuple[int, int, int], expected: tuple[int, int, int]) -> None:
    rgb = np.broadcast_to(np.array(colour, np.uint8), (16, 32, 3)).copy()
    got = rgb_to_i420(torch.from_numpy(rgb)[None])[0].numpy()
    assert got.shape == (24, 32)
    planes = got[:16], got[16:20], got[20:24]
    assert tuple(int(p.flat[0]) for p in planes) == expected
    assert all((p == p.flat[0]).all() for p in planes)
    assert (got == reference(rgb)).all()


@pytest.mark.parametrize("height, width", [(64, 48), (272, 176), (34, 50), (2, 2)])
def test_pictures(height: int, width: int) -> None:
    rgb = smooth(height, width)
    got = rgb_to_i420(torch.from_numpy(rgb)[None])[0].numpy().astype(int)
    expected = reference(rgb).astype(int)
    assert got.shape == expected.shape
    wrong = np.abs(got - expected)
    assert wrong.max() <= 1 and (wrong > 0).mean() < 0.001  # a half may round either way in float32


def test_frames_do_not_mix() -> None:
    frames = np.stack([smooth(32, 32), np.zeros((32, 32, 3), np.uint8), smooth(32, 32)[::-1].copy()])
    together = rgb_to_i420(torch.from_numpy(frames))
    for i in range(3):
        assert torch.equal(together[i], rgb_to_i420(torch.from_numpy(frames[i : i + 1]))[0])


@pytest.mark.parametrize(
    "frames",
    [torch.zeros(1, 3, 4, 3, dtype=torch.uint8), torch.zeros(1, 4, 5, 3, dtype=torch.uint8), torch.zeros(1, 4, 4, 3)],
)
def test_refuses(frames: torch.Tensor) -> None:
    with pytest.raises(ValueError):
        rgb_to_i420(frames)


def signal(count: int, height: int, width: int, channels: int) -> torch.Tensor:
    return torch.randn(count, height, width, channels, generator=torch.Generator().manual_seed(0))


def test_signal_is_rgb_without_the_rounding() -> None:
    x, bias = signal(2, 6, 10, 8), torch.linspace(-0.3, 0.3, 8)
    rgb = signal_to_rgb(x, bias)
    expected = ((x + bias)[..., :3].clamp(-1, 1) * 127.5 + 127.5).round()
    assert torch.equal(rgb, expected.to(torch.uint8))
    assert (signal_to_i420(x, bias).int() - rgb_to_i420(rgb).int()).abs().max() <= 1


@pytest.mark.parametrize("shape", [(1, 2, 2, 3), (2, 6, 10, 8), (1, 4, 600, 8)])
@pytest.mark.parametrize("biased", [False, True])
def test_kernel_equals_reference(device: str, shape: tuple[int, ...], biased: bool) -> None:
    x = signal(*shape).to(device)
    bias = torch.linspace(-0.3, 0.3, shape[-1], device=device) if biased else None
    got, expected = signal_to_i420_triton(x, bias), signal_to_i420_reference(x, bias)
    wrong = (got.int() - expected.int()).abs()
    assert wrong.max() <= 1  # a half rounds up here and to even there
    assert (wrong > 0).float().mean() < 0.01


def test_odd_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="even"):
        signal_to_i420(torch.zeros(1, 3, 4, 3))
