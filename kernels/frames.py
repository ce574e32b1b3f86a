"""Frames to channels and back: what convolutions over a few frames are made of. Tensors are channels-last."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.dispatch import jit, takes_kernel, tl, triton

# Numbers of a program's tile, and its warps.
_TILE, _WARPS = 4096, 4


def join_frames(x: Tensor, count: int, *, step: int, delta: int) -> Tensor:
    """Frames side by side in the channels.

    The kernel serves channels of a power of two on a GPU with gradients off.

    Args:
        x: [n, h, w, c].
        count: how many lie side by side.
        step, delta: frame i of the result has the frames step * i, step * i + delta, step * i + 2 * delta, ...; those
            before the first are zero.

    Returns:
        [n / step, h, w, count * c].
    """
    kernel = takes_kernel(x) and x.shape[-1] & (x.shape[-1] - 1) == 0
    return (join_frames_triton if kernel else join_frames_reference)(x, count, step=step, delta=delta)


def join_frames_reference(x: Tensor, count: int, *, step: int, delta: int) -> Tensor:
    """`join_frames` in plain PyTorch."""
    found = torch.arange(0, len(x), step)[:, None] + delta * torch.arange(count)
    zero = torch.zeros_like(x[:1])
    padded = torch.cat((x, zero))  # what is before the first frame comes last
    index = torch.where(found < 0, len(x), found).to(x.device)
    return padded[index].permute(0, 2, 3, 1, 4).flatten(3)


def join_frames_triton(x: Tensor, count: int, *, step: int, delta: int) -> Tensor:
    """`join_frames` by the kernel: x contiguous."""
    frames, h, w, c = x.shape
    out = torch.empty(frames // step, h, w, count * c, dtype=x.dtype, device=x.device)
    pixels = max(1, _TILE // c)
    _join_frames[(triton.cdiv(h * w, pixels), len(out))](
        x, out, h * w, step, delta, COUNT=count, CHANNELS=c, PIXELS=pixels, num_warps=_WARPS
    )
    return out


def split_frames(x: Tensor, count: int, *, skip: int = 0) -> Tensor:
    """Frames that lie side by side in the channels one after another, with height and width doubled.

    The kernel serves channels of a power of two on a GPU with gradients off.

    Args:
        x: [n, h, w, count * c].
        count: how many lie side by side.
        skip: so many of the first are left out.

    Returns:
        [n * count - skip, 2 h, 2 w, c].
    """
    width = x.shape[-1] // count
    kernel = takes_kernel(x) and width & (width - 1) == 0
    return (split_frames_triton if kernel else split_frames_reference)(x, count, skip=skip)


def split_frames_reference(x: Tensor, count: int, *, skip: int = 0) -> Tensor:
    """`split_frames` in plain PyTorch."""
    frames = x.unflatten(3, (count, -1)).permute(0, 3, 1, 2, 4).flatten(0, 1)[skip:]
    return frames.repeat_interleave(2, 1).repeat_interleave(2, 2)


def split_frames_triton(x: Tensor, count: int, *, skip: int = 0) -> Tensor:
    """`split_frames` by the kernel: x contiguous."""
    frames, h, w, wide = x.shape
    c = wide // count
    out = torch.empty(frames * count - skip, 2 * h, 2 * w, c, dtype=x.dtype, device=x.device)
    pixels = max(1, _TILE // c)
    _split_frames[(triton.cdiv(4 * h * w, pixels), len(out))](
        x, out, h, w, skip, COUNT=count, CHANNELS=c, PIXELS=pixels, num_warps=_WARPS
    )
    return out


@jit
def _join_frames(x, out, area, step, delta, COUNT: tl.constexpr, CHANNELS: tl.constexpr, PIXELS: tl.constexpr):
    """Some pixels of one frame of the result a program."""
    pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)[:, None]
    channel = tl.arange(0, CHANNELS)[None, :]
    frame = tl.program_id(1)
    place = out + (frame.to(tl.int64) * area + pixel) * (COUNT * CHANNELS) + channel
    for part in tl.static_range(COUNT):
        source = frame * step + delta * part
        known = pixel < tl.where(source >= 0, area, 0)
        value = tl.load(x + (source.to(tl.int64) * area + pixel) * CHANNELS + channel, known, 0.0)
        tl.store(place + part * CHANNELS, value, pixel < area)


@jit
def _split_frames(x, out, height, width, skip, COUNT: tl.constexpr, CHANNELS: tl.constexpr, PIXELS: tl.constexpr):
    """Some pixels of one frame of the result a program."""
    pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)[:, None]
    channel = tl.arange(0, CHANNELS)[None, :]
    frame = tl.program_id(1)
    inside = pixel < 4 * height * width
    y, column = pixel // (2 * width), pixel % (2 * width)
    grown = frame + skip
    source = (grown // COUNT).to(tl.int64) * height * width + (y // 2) * width + column // 2
    value = tl.load(x + (source * COUNT + grown % COUNT) * CHANNELS + channel, inside, 0.0)
    tl.store(out + (frame.to(tl.int64) * 4 * height * width + pixel) * CHANNELS + channel, value, inside)
