"""A 3x3 convolution to a few channels, such as a decoder's last one to R, G and B.

Tensor cores take outputs by the eight or more, and implicit convolutions read their input once for every tap, so that
libraries reach a tenth of the memory's speed here. Instead one matrix product makes what each pixel gives to each
output through each tap, one plane each, and a second pass adds the planes up, shifted by their taps. Both go over
memory in straight lines.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.dispatch import jit, takes_kernel, tl, triton

# Pixels of a program, and its warps.
_BLOCK, _WARPS = 512, 4


def narrow_conv(x: Tensor, weight: Tensor, *, bordered: bool) -> Tensor:
    """Convolve 3x3 in space, and over neighbouring frames.

    The kernel serves float16 and bfloat16 on a GPU with gradients off. It rounds what a tap gives before it adds it.

    Args:
        x: [t + kt - 1, h, w, c], channels-last.
        weight: [out, c, kt, 3, 3].
        bordered: x has a border of one pixel already; else it is taken to be zero.

    Returns:
        [t, h, w, out] without the border, contiguous.
    """
    halves = (torch.float16, torch.bfloat16)
    kernel = x.dtype in halves and weight.dtype == x.dtype and takes_kernel(x)
    return (narrow_conv_triton if kernel else narrow_conv_reference)(x, weight, bordered=bordered)


def narrow_conv_reference(x: Tensor, weight: Tensor, *, bordered: bool) -> Tensor:
    """`narrow_conv` in plain PyTorch."""
    padding = (0, 0, 0) if bordered else (0, 1, 1)
    y = F.conv3d(x[None].permute(0, 4, 1, 2, 3), weight, padding=padding)
    return y.permute(0, 2, 3, 4, 1)[0].contiguous()


def narrow_conv_triton(x: Tensor, weight: Tensor, *, bordered: bool) -> Tensor:
    """`narrow_conv` by a product and the kernel: x contiguous."""
    frames, height, width, channels = x.shape
    out_channels, times = len(weight), weight.shape[2]
    taps = weight.permute(2, 3, 4, 0, 1).reshape(-1, channels)
    planes = taps @ x.view(-1, channels).t()
    border = 1 if bordered else 0
    size = frames - times + 1, height - 2 * border, width - 2 * border
    out = torch.empty(*size, out_channels, dtype=x.dtype, device=x.device)
    _add_planes[(triton.cdiv(size[1] * size[2], _BLOCK), size[0])](
        planes,
        out,
        *size[1:],
        planes.shape[1],
        OUT=out_channels,
        TIMES=times,
        BORDER=border,
        BLOCK=_BLOCK,
        num_warps=_WARPS,
    )
    return out


@jit
def _add_planes(
    planes,
    out,
    height,
    width,
    plane,
    OUT: tl.constexpr,
    TIMES: tl.constexpr,
    BORDER: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Some pixels of one frame a program. Planes are [TIMES, 3, 3, OUT] of `plane` numbers each."""
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    frame = tl.program_id(1)
    inside = pixel < height * width
    y, x = pixel // width, pixel % width
    stride = width + 2 * BORDER
    area = (height + 2 * BORDER) * stride
    place = out + (frame.to(tl.int64) * height * width + pixel) * OUT
    for channel in tl.static_range(OUT):
        total = tl.zeros([BLOCK], tl.float32)
        for time in tl.static_range(TIMES):
            for row in tl.static_range(3):
                for column in tl.static_range(3):
                    tap = ((time * 3 + row) * 3 + column) * OUT + channel
                    there_y, there_x = y + (row - 1 + BORDER), x + (column - 1 + BORDER)
                    known = inside
                    if BORDER == 0:
                        known = inside & (there_y >= 0) & (there_y < height) & (there_x >= 0) & (there_x < width)
                    source = planes + tl.full([], tap, tl.int64) * plane + (frame + time).to(tl.int64) * area
                    total += tl.load(source + there_y * stride + there_x, known, 0.0).to(tl.float32)
        tl.store(place + channel, total, inside)
