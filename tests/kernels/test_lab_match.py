"""Colour matching against scikit-image's conversions, and the kernel against the reference."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from kernels.lab_match import lab_match, lab_match_reference, lab_match_triton, lab_statistics, to_lab, to_rgb


def picture(seed: int, size: int = 24) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).uniform(0, 1, (size, size, 3)).astype(np.float32))


def test_conversions_are_theirs() -> None:
    color = pytest.importorskip("skimage.color")  # not on every machine with a GPU
    rgb = picture(0)
    lab = to_lab(rgb)
    expected = color.rgb2lab(rgb.double().numpy())
    assert np.abs(lab.numpy() - expected).max() < 1e-2
    back = to_rgb(torch.from_numpy(expected).float())
    assert np.abs(back.numpy() - color.lab2rgb(expected)).max() < 1e-4
    assert (to_rgb(to_lab(rgb)) - rgb).abs().max() < 1e-4


def test_a_matched_frame_has_the_portraits_statistics_and_its_own_picture() -> None:
    portrait, frames = picture(1) * 0.4 + 0.3, torch.stack([picture(2) * 0.3 + 0.2, picture(3) * 0.2 + 0.4])
    matched = lab_match(frames * 2 - 1, None, lab_statistics(portrait))
    for frame, found in zip(frames, matched, strict=True):
        off = lab_statistics(found) - lab_statistics(portrait)
        assert off[0].abs().max() < 0.5 and off[1].abs().max() < 1.0
        pair = torch.stack([to_lab(x)[..., 0].flatten() for x in (frame, found)])
        assert torch.corrcoef(pair)[0, 1] > 0.999


def test_the_portrait_stays_as_it_is_and_a_plain_frame_breaks_nothing() -> None:
    portrait = picture(4)
    colours = lab_statistics(portrait)
    assert (lab_match(portrait[None] * 2 - 1, None, colours)[0] - portrait).abs().max() < 1e-3
    for level in (-1.0, 0.0, 1.0):
        assert lab_match(torch.full((1, 8, 8, 3), level), None, colours).isfinite().all()


@pytest.mark.parametrize("size", [(2, 40, 56), (1, 64, 128)])  # not whole blocks, and several of them
@pytest.mark.parametrize("channels, biased", [(3, False), (8, True)])
def test_kernel_equals_reference(device: str, size: tuple[int, int, int], channels: int, biased: bool) -> None:
    generator = torch.Generator().manual_seed(channels)
    signal = torch.randn(*size, channels, generator=generator)
    signal[0, 0, 0, :3], signal[0, 0, 1, :3] = -3, 3
    signal = signal.to(device, torch.float16)
    bias = torch.tensor([0.1, -0.2, 0.3, *[0] * 5], dtype=torch.float16, device=device) if biased else None
    colours = torch.tensor([[52.0, 9.0, -4.0], [14.0, 11.0, 6.0]], device=device)
    expected = lab_match_reference(signal, bias, colours)
    with torch.inference_mode():
        got = lab_match_triton(signal, bias, colours)
    assert got.shape == (*size, 3) and got.dtype == torch.float32
    assert expected.std() > 0.05 and (got - expected).abs().max() < 2e-4
