"""RGB to I420, as video codecs take it: BT.709, limited range (Rec. ITU-R BT.709-6, items 3.2-3.4 and 4)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

# R'G'B' in [0, 255] to Y'CbCr at 8 bits: luma 16 + 219 Y, chroma 128 + 224 C.
_KR, _KG, _KB = 0.2126, 0.7152, 0.0722
_LUMA = [219 / 255 * k for k in (_KR, _KG, _KB)]
_CB = [224 / 255 / (2 * (1 - _KB)) * k for k in (-_KR, -_KG, 1 - _KB)]
_CR = [224 / 255 / (2 * (1 - _KR)) * k for k in (1 - _KR, -_KG, -_KB)]


def rgb_to_i420(frames: Tensor) -> Tensor:
    """Convert frames on the device that they are on.

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
    count, height, width, _ = frames.shape
    if height % 2 or width % 2:
        raise ValueError(f"I420 needs an even height and width, not {height}x{width}")
    pixels = frames.permute(0, 3, 1, 2).float()
    luma = F.conv2d(pixels, pixels.new_tensor(_LUMA).view(1, 3, 1, 1), pixels.new_tensor([16.0]))
    chroma = F.conv2d(F.avg_pool2d(pixels, 2), pixels.new_tensor([_CB, _CR]).view(2, 3, 1, 1))
    planes = torch.cat((luma.flatten(1), (chroma + 128).flatten(1)), 1)
    return planes.round_().clamp_(0, 255).to(torch.uint8).view(count, height * 3 // 2, width)
