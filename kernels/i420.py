"""Pictures as video codecs take them: I420, BT.709, limited range (Rec. ITU-R BT.709-6, items 3.2-3.4 and 4)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.dispatch import jit, takes_kernel, tl, triton

# R'G'B' in [0, 255] to Y'CbCr at 8 bits: luma 16 + 219 Y, chroma 128 + 224 C.
_KR, _KG, _KB = 0.2126, 0.7152, 0.0722
_LUMA = [219 / 255 * k for k in (_KR, _KG, _KB)]
_CB = [224 / 255 / (2 * (1 - _KB)) * k for k in (-_KR, -_KG, 1 - _KB)]
_CR = [224 / 255 / (2 * (1 - _KR)) * k for k in (1 - _KR, -_KG, -_KB)]

# Pairs of columns that one program converts.
_BLOCK = 256


def rgb_to_i420(frames: Tensor) -> Tensor:
    """Convert frames of bytes.

    Args:
        frames: uint8 [n, H, W, 3], RGB; H and W even.

    Returns:
        uint8 [n, H * 3 / 2, W]: the H rows of Y, then the U plane [H / 2, W / 2] and the V plane, each as it lies in
        memory. Chroma is the mean of 2x2 pixels (sited in their middle).

    Raises:
        ValueError: odd sizes, or not uint8 RGB.
    """
    if frames.dtype != torch.uint8 or frames.ndim != 4 or frames.shape[-1] != 3:
        raise ValueError(f"expected uint8 [n, H, W, 3], got {frames.dtype} {tuple(frames.shape)}")
    return _convert(frames.float())


def signal_to_i420(signal: Tensor, bias: Tensor | None = None) -> Tensor:
    """Convert a decoder's output without rounding to RGB bytes first.

    Args:
        signal: [n, H, W, 3 or more], any float dtype, contiguous: R, G, B with black at -1 and white at 1, clamped
            here; further channels are padding. H and W even.
        bias: of the channels, added first; as long as they are.

    Returns:
        As `rgb_to_i420`.

    Raises:
        ValueError: odd sizes.
    """
    _check_even(signal)
    if takes_kernel(signal):
        return signal_to_i420_triton(signal, bias)
    return signal_to_i420_reference(signal, bias)


def signal_to_i420_reference(signal: Tensor, bias: Tensor | None = None) -> Tensor:
    """`signal_to_i420` in plain PyTorch."""
    return _convert(_levels(signal, bias))


def signal_to_rgb(signal: Tensor, bias: Tensor | None = None) -> Tensor:
    """The same signal as uint8 [n, H, W, 3], RGB."""
    return _levels(signal, bias).round_().to(torch.uint8)


def _levels(signal: Tensor, bias: Tensor | None) -> Tensor:
    """float32 [n, H, W, 3] in [0, 255]."""
    value = signal[..., :3].float()
    if bias is not None:
        value = value + bias[:3].float()
    return (value.clamp(-1, 1) + 1) * 127.5


def _check_even(frames: Tensor) -> None:
    _, height, width, _ = frames.shape
    if height % 2 or width % 2:
        raise ValueError(f"I420 needs an even height and width, not {height}x{width}")


def _convert(levels: Tensor) -> Tensor:
    """float32 [n, H, W, 3] in [0, 255] -> uint8 [n, H * 3 / 2, W]."""
    _check_even(levels)
    count, height, width, _ = levels.shape
    pixels = levels.permute(0, 3, 1, 2)
    small = F.avg_pool2d(pixels, 2)
    planes = torch.cat([_mix(pixels, _LUMA, 16), _mix(small, _CB, 128), _mix(small, _CR, 128)], 1)
    return planes.round_().clamp_(0, 255).to(torch.uint8).view(count, height * 3 // 2, width)


def _mix(pixels: Tensor, weights: Sequence[float], offset: float) -> Tensor:
    """One plane of [n, 3, H, W], flat: [n, H * W]. A captured graph could not make a tensor of the weights."""
    red, green, blue = pixels.unbind(1)
    return (weights[0] * red + weights[1] * green + weights[2] * blue + offset).flatten(1)


def signal_to_i420_triton(signal: Tensor, bias: Tensor | None) -> Tensor:
    """`signal_to_i420` by the kernel."""
    count, height, width, channels = signal.shape
    out = torch.empty(count, height * 3 // 2, width, dtype=torch.uint8, device=signal.device)
    grid = (triton.cdiv(width // 2, _BLOCK), height // 2, count)
    _signal_to_i420[grid](
        signal,
        bias,
        out,
        height,
        width,
        channels=channels,
        yr=_LUMA[0],
        yg=_LUMA[1],
        yb=_LUMA[2],
        ur=_CB[0],
        ug=_CB[1],
        ub=_CB[2],
        vr=_CR[0],
        vg=_CR[1],
        vb=_CR[2],
        block=_BLOCK,
    )
    return out


@jit
def _level(signal, bias, index, channel: tl.constexpr, inside):
    value = tl.load(signal + index + channel, inside, 0.0).to(tl.float32)
    if bias is not None:
        value += tl.load(bias + channel).to(tl.float32)
    return (tl.minimum(tl.maximum(value, -1.0), 1.0) + 1) * 127.5


@jit
def _byte(value):
    return tl.minimum(tl.maximum(value + 0.5, 0.0), 255.0).to(tl.uint8)


@jit
def _signal_to_i420(
    signal,
    bias,
    out,
    height,
    width,
    channels: tl.constexpr,
    yr: tl.constexpr,
    yg: tl.constexpr,
    yb: tl.constexpr,
    ur: tl.constexpr,
    ug: tl.constexpr,
    ub: tl.constexpr,
    vr: tl.constexpr,
    vg: tl.constexpr,
    vb: tl.constexpr,
    block: tl.constexpr,
):
    """One program: `block` pairs of columns of two rows."""
    column = tl.program_id(0) * block + tl.arange(0, block)
    row = tl.program_id(1)
    frame = tl.program_id(2)
    inside = column < width // 2
    out += frame * (height * width * 3 // 2)
    u = tl.zeros([block], tl.float32)
    v = tl.zeros([block], tl.float32)
    for a in tl.static_range(2):
        for b in tl.static_range(2):
            pixel = (row * 2 + a) * width + column * 2 + b
            index = (frame * height * width + pixel) * channels
            red = _level(signal, bias, index, 0, inside)
            green = _level(signal, bias, index, 1, inside)
            blue = _level(signal, bias, index, 2, inside)
            tl.store(out + pixel, _byte(16 + yr * red + yg * green + yb * blue), inside)
            u += ur * red + ug * green + ub * blue
            v += vr * red + vg * green + vb * blue
    chroma = height * width + row * (width // 2) + column
    tl.store(out + chroma, _byte(128 + u / 4), inside)
    tl.store(out + height * width // 4 + chroma, _byte(128 + v / 4), inside)
