"""Augmentation of log-mel features in training: other throats, rooms and levels prepare the model for new voices."""

from __future__ import annotations

import torch
from torch import Tensor

from characters.generate.hearing import MEL_SCALE, SILENCE

WARP = 0.14  # largest stretch of the frequency axis; vocal tracts of women and men differ by about 0.15
SHIFT = 3.0  # bins
EQ = 6.0  # dB, at each of a few knots
GAIN = 10.0  # dB
NOISE_FLOOR = 0.45  # largest rise of the floor, as a part of the way from silence to 0 (the mean of speech)
JITTER = 0.06  # of the normalised unit, in every bin and frame

_DB = torch.log(torch.tensor(10.0)).item() / 10 / MEL_SCALE  # one dB of power in normalised units


def augment_mel(mel: Tensor, strength: float = 1.0) -> Tensor:
    """Changes each item's voice and recording, in the same way over all of its frames.

    Warps and shifts the mel axis, adds an equaliser curve, a gain, a noise floor and a little noise. Random numbers
    come from the device's default generator. A tenth of the items stay as they are.

    Args:
        mel: float [B, T, 80] normalised log-mel. A whole clip, or all windows that overlap, must be one item, so that
            they change alike.
        strength: scales every change; 0 returns `mel`.

    Returns:
        [B, T, 80] of mel's dtype and device; never below digital silence.
    """
    if strength == 0:
        return mel
    batch, _, bins = mel.shape
    device = mel.device
    active = (torch.rand(batch, 1, 1, device=device) < 0.9).float() * strength

    def uniform(*shape: int) -> Tensor:
        return (torch.rand(batch, *shape, device=device) * 2 - 1) * active.reshape(batch, *([1] * len(shape)))

    # Where on the old axis each new bin reads, held inside the spectrum; linear interpolation, as one matrix an item.
    bin_numbers = torch.arange(bins, device=device, dtype=torch.float32)
    positions = (bin_numbers * torch.exp(uniform(1) * WARP) + uniform(1) * SHIFT).clamp(0, bins - 1)
    weights = (1 - (bin_numbers[:, None] - positions[:, None]).abs()).clamp(min=0)  # [B, old, new]
    out = mel.float() @ weights

    knots = uniform(1, 7) * EQ * _DB
    curve = torch.nn.functional.interpolate(knots, size=bins, mode="linear", align_corners=True)
    change = curve + uniform(1, 1) * GAIN * _DB
    sounding = ((out - SILENCE) / 0.3).clamp(0, 1)  # digital silence has nothing to amplify
    floor = SILENCE * (1 - NOISE_FLOOR * uniform(1, 1).clamp(min=0))  # raised for half the items
    out = (((out + sounding * change) * MEL_SCALE).exp() + (floor * MEL_SCALE).exp()).log() / MEL_SCALE
    spread = JITTER * active + 0.2 * (floor - SILENCE) * (1 - sounding)
    return (out + spread * torch.randn_like(out)).clamp(min=SILENCE).to(mel.dtype)
