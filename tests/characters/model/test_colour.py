"""Colour matching against scikit-image's conversions."""

from __future__ import annotations

import numpy as np
import torch
from skimage.color import lab2rgb, rgb2lab

from characters.model.colour import LabMatch, to_lab, to_rgb


def picture(seed: int, size: int = 24) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).uniform(0, 1, (3, size, size)).astype(np.float32))


def test_conversions_are_theirs() -> None:
    rgb = picture(0)
    lab = to_lab(rgb[None])[0]
    expected = rgb2lab(rgb.permute(1, 2, 0).double().numpy()).transpose(2, 0, 1)
    assert np.abs(lab.numpy() - expected).max() < 1e-2
    back = to_rgb(torch.from_numpy(expected)[None].float())[0]
    assert np.abs(back.numpy() - lab2rgb(expected.transpose(1, 2, 0)).transpose(2, 0, 1)).max() < 1e-4
    assert (to_rgb(to_lab(rgb[None]))[0] - rgb).abs().max() < 1e-4


def test_a_matched_frame_has_the_portraits_statistics_and_its_own_picture() -> None:
    portrait, frames = picture(1) * 0.4 + 0.3, torch.stack([picture(2) * 0.3 + 0.2, picture(3) * 0.2 + 0.4])
    matched = LabMatch(portrait)(frames)
    lab, target = to_lab(matched), to_lab(portrait[None])
    assert (lab.mean((2, 3)) - target.mean((2, 3))).abs().max() < 0.5
    assert (lab.std((2, 3)) - target.std((2, 3))).abs().max() < 1.0
    assert torch.corrcoef(torch.stack((to_lab(frames)[0, 0].flatten(), lab[0, 0].flatten())))[0, 1] > 0.999


def test_the_portrait_stays_as_it_is_and_a_plain_frame_breaks_nothing() -> None:
    portrait = picture(4)
    assert (LabMatch(portrait)(portrait[None])[0] - portrait).abs().max() < 1e-3
    assert LabMatch(portrait)(torch.full((1, 3, 8, 8), 0.5)).isfinite().all()
    for edge in (0.0, 1.0):
        assert LabMatch(portrait)(torch.full((1, 3, 8, 8), edge)).isfinite().all()
