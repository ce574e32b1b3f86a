"""Colours of generated frames held to those of the portrait: mean and spread of each channel in CIE Lab.

Source: Reinhard et al., Color Transfer between Images (2001), in CIE 1976 L*a*b* (D65, 2 degrees, sRGB). Two passes go
over a decoder's output: one takes the statistics of blocks of pixels, the other matches and writes. Nothing is decided
on the host, so that all of it can stand in a captured graph.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.dispatch import jit, takes_kernel, tl, triton

# Linear sRGB to XYZ (IEC 61966-2-1), in units of the white of D65, and back.
_WHITE = torch.tensor((0.95047, 1.0, 1.08883), dtype=torch.float64)
_TO_XYZ = torch.tensor(
    [[0.412453, 0.357580, 0.180423], [0.212671, 0.715160, 0.072169], [0.019334, 0.119193, 0.950227]],
    dtype=torch.float64,
)
_FORWARD = tuple((_TO_XYZ / _WHITE[:, None]).flatten().tolist())
_BACKWARD = tuple((torch.linalg.inv(_TO_XYZ) * _WHITE).flatten().tolist())
_EPSILON, _SLOPE, _OFFSET = 0.008856, 7.787, 16 / 116
_DARK, _TINY = 0.2068966, 1e-6

# Pixels of a program, and its warps.
_BLOCK, _WARPS = 2048, 8


def lab_match(signal: Tensor, bias: Tensor | None, colours: Tensor) -> Tensor:
    """Match frames, each on its own, to a picture.

    Args:
        signal: [n, H, W, 3 or more], any float dtype, contiguous: R, G, B with black at -1 and white at 1, clamped
            here; further channels are padding.
        bias: of the channels, added first; None = none.
        colours: float32 [2, 3], what `lab_statistics` says of the picture.

    Returns:
        float32 [n, H, W, 3] in [0, 1].
    """
    kernel = takes_kernel(signal, bias, colours)
    return (lab_match_triton if kernel else lab_match_reference)(signal, bias, colours)


def lab_match_reference(signal: Tensor, bias: Tensor | None, colours: Tensor) -> Tensor:
    """`lab_match` in plain PyTorch."""
    lab = to_lab(signal_to_unit(signal, bias))
    mean, spread = lab.mean((1, 2), keepdim=True), lab.std((1, 2), correction=0, keepdim=True)
    return to_rgb((lab - mean) / (spread + _TINY) * colours[1] + colours[0])


def lab_statistics(picture: Tensor) -> Tensor:
    """float [H, W, 3] in [0, 1], sRGB -> float32 [2, 3]: mean and spread of L, a and b."""
    lab = to_lab(picture)
    return torch.stack((lab.mean((0, 1)), lab.std((0, 1), correction=0)))


def signal_to_unit(signal: Tensor, bias: Tensor | None) -> Tensor:
    """float32 [n, H, W, 3] in [0, 1] of a decoder's output; see `lab_match`."""
    value = signal[..., :3].float()
    if bias is not None:
        value = value + bias[:3].float()
    return (value.clamp(-1, 1) + 1) * 0.5


def to_lab(rgb: Tensor) -> Tensor:
    """sRGB in [0, 1], [..., 3] -> float32 Lab; L in [0, 100]."""
    rgb = rgb.float()
    linear = torch.where(rgb > 0.04045, ((rgb + 0.055) / 1.055).clamp_min(0) ** 2.4, rgb / 12.92)
    xyz = _mix(linear, _FORWARD).clamp(1e-8, 1.0)
    f = torch.where(xyz > _EPSILON, xyz ** (1 / 3), _SLOPE * xyz + _OFFSET)
    x, y, z = f.unbind(-1)
    return torch.stack((116 * y - 16, 500 * (x - y), 200 * (y - z)), -1)


def to_rgb(lab: Tensor) -> Tensor:
    """Inverse of `to_lab`, clamped to [0, 1]."""
    lightness, a, b = lab.unbind(-1)
    y = (lightness + 16) / 116
    f = torch.stack((y + a / 500, y, y - b / 200), -1)
    linear = _mix(torch.where(f > _DARK, f**3, (f - _OFFSET) / _SLOPE), _BACKWARD)
    rgb = torch.where(linear > 0.0031308, 1.055 * linear.clamp_min(1e-12) ** (1 / 2.4) - 0.055, 12.92 * linear)
    return rgb.clamp(0, 1)


def _mix(x: Tensor, matrix: tuple[float, ...]) -> Tensor:
    """[..., 3] by a matrix row by row. A captured graph could not make a tensor of the matrix."""
    a, b, c = x.unbind(-1)
    return torch.stack([matrix[i] * a + matrix[i + 1] * b + matrix[i + 2] * c for i in range(0, 9, 3)], -1)


def lab_match_triton(signal: Tensor, bias: Tensor | None, colours: Tensor) -> Tensor:
    """`lab_match` by the kernels."""
    count, height, width, channels = signal.shape
    area = height * width
    blocks = triton.cdiv(area, _BLOCK)
    moments = torch.empty(count, 6, blocks, dtype=torch.float32, device=signal.device)
    out = torch.empty(count, height, width, 3, dtype=torch.float32, device=signal.device)
    sizes = {"CHANNELS": channels, "BLOCK": _BLOCK, "FORWARD": _FORWARD, "num_warps": _WARPS}
    _lab_moments[(blocks, count)](signal, bias, moments, area, blocks, **sizes)
    _lab_match[(blocks, count)](
        signal,
        bias,
        moments,
        colours,
        out,
        area,
        blocks,
        BLOCKS=triton.next_power_of_2(blocks),
        BACKWARD=_BACKWARD,
        **sizes,
    )
    return out


@jit
def _power(x, exponent: tl.constexpr):
    """Of numbers above zero."""
    return tl.exp2(exponent * tl.log2(x))


@jit
def _unit(signal, bias, place, channel: tl.constexpr, inside):
    """A channel in [0, 1], linear."""
    x = tl.load(signal + place + channel, inside, 0.0).to(tl.float32)
    if bias is not None:
        x += tl.load(bias + channel).to(tl.float32)
    x = (tl.minimum(tl.maximum(x, -1.0), 1.0) + 1.0) * 0.5
    return tl.where(x > 0.04045, _power((x + 0.055) / 1.055, 2.4), x / 12.92)


@jit
def _bent(x):
    x = tl.minimum(tl.maximum(x, 1e-8), 1.0)
    return tl.where(x > 0.008856, _power(x, 0.3333333333333333), 7.787 * x + 0.13793103448275862)


@jit
def _lab(signal, bias, frame, pixel, inside, area, CHANNELS: tl.constexpr, FORWARD: tl.constexpr):
    """L, a and b of some pixels."""
    place = (frame.to(tl.int64) * area + pixel) * CHANNELS
    red = _unit(signal, bias, place, 0, inside)
    green = _unit(signal, bias, place, 1, inside)
    blue = _unit(signal, bias, place, 2, inside)
    x = _bent(FORWARD[0] * red + FORWARD[1] * green + FORWARD[2] * blue)
    y = _bent(FORWARD[3] * red + FORWARD[4] * green + FORWARD[5] * blue)
    z = _bent(FORWARD[6] * red + FORWARD[7] * green + FORWARD[8] * blue)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@jit
def _moments_of(x, inside, count, place, step):
    """Mean and sum of squared differences to it."""
    mean = tl.sum(tl.where(inside, x, 0.0), 0) / count
    off = tl.where(inside, x - mean, 0.0)
    tl.store(place, mean)
    tl.store(place + step, tl.sum(off * off, 0))


@jit
def _lab_moments(
    signal, bias, moments, area, blocks, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, FORWARD: tl.constexpr
):
    """One block of pixels of one frame a program; moments are [n, 6, blocks]: three means, three sums."""
    block, frame = tl.program_id(0), tl.program_id(1)
    pixel = block * BLOCK + tl.arange(0, BLOCK)
    inside = pixel < area
    lightness, a, b = _lab(signal, bias, frame, pixel, inside, area, CHANNELS, FORWARD)
    count = tl.minimum(area - block * BLOCK, BLOCK).to(tl.float32)
    place = moments + frame * 6 * blocks + block
    _moments_of(lightness, inside, count, place, 3 * blocks)
    _moments_of(a, inside, count, place + blocks, 3 * blocks)
    _moments_of(b, inside, count, place + 2 * blocks, 3 * blocks)


@jit
def _matched(x, moments, colours, channel: tl.constexpr, count, known, block, area, blocks):
    """One channel with the picture's mean and spread; the frame's are put together from all blocks."""
    means = tl.load(moments + channel * blocks + block, known, 0.0)
    squares = tl.load(moments + (3 + channel) * blocks + block, known, 0.0)
    mean = tl.sum(means * count, 0) / area
    off = means - mean
    spread = tl.sqrt(tl.sum(squares + count * off * off, 0) / area)
    gain = tl.load(colours + 3 + channel) / (spread + 1e-6)
    return (x - mean) * gain + tl.load(colours + channel)


@jit
def _straight(f):
    return tl.where(f > 0.2068966, f * f * f, (f - 0.13793103448275862) / 7.787)


@jit
def _shown(x):
    x = tl.where(x > 0.0031308, 1.055 * _power(tl.maximum(x, 1e-12), 0.4166666666666667) - 0.055, 12.92 * x)
    return tl.minimum(tl.maximum(x, 0.0), 1.0)


@jit
def _lab_match(
    signal,
    bias,
    moments,
    colours,
    out,
    area,
    blocks,
    BLOCKS: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
    FORWARD: tl.constexpr,
    BACKWARD: tl.constexpr,
):
    """One block of pixels of one frame a program."""
    number, frame = tl.program_id(0), tl.program_id(1)
    pixel = number * BLOCK + tl.arange(0, BLOCK)
    inside = pixel < area
    lightness, a, b = _lab(signal, bias, frame, pixel, inside, area, CHANNELS, FORWARD)
    block = tl.arange(0, BLOCKS)
    known = block < blocks
    count = tl.where(known, tl.minimum(area - block * BLOCK, BLOCK), 0).to(tl.float32)
    moments += frame * 6 * blocks
    lightness = _matched(lightness, moments, colours, 0, count, known, block, area, blocks)
    a = _matched(a, moments, colours, 1, count, known, block, area, blocks)
    b = _matched(b, moments, colours, 2, count, known, block, area, blocks)
    y = (lightness + 16) / 116
    x, z = _straight(y + a / 500), _straight(y - b / 200)
    y = _straight(y)
    place = out + (frame.to(tl.int64) * area + pixel) * 3
    for channel in tl.static_range(3):
        mixed = BACKWARD[3 * channel] * x + BACKWARD[3 * channel + 1] * y + BACKWARD[3 * channel + 2] * z
        tl.store(place + channel, _shown(mixed), inside)
