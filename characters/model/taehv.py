"""A tiny autoencoder for the latents of Wan 2.1: frames convolved one by one, each seeing the one before it.

Source: TAEHV (O. Boer Bohan, MIT licence), checkpoint taew2_1, whose parameter names it keeps. It is about 30 times
faster than the Wan VAE and a little softer. A clip is worked on as a whole; nothing is remembered between clips.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from characters.model.wan_vae.workspace import Workspace
from kernels.frames import join_frames, split_frames
from kernels.lab_match import signal_to_unit
from kernels.narrow_conv import narrow_conv

STRIDE = 4  # frames of video of a latent
_WIDTH = 64
_DECODER = (256, 128, 64, 64)


def _conv(channels: int, out: int, stride: int = 1, bias: bool = True) -> nn.Conv2d:
    return nn.Conv2d(channels, out, 3, stride, padding=1, bias=bias)


class _Clamp(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x / 3) * 3


class _Memory(nn.Module):
    """A residual block over a frame and the one before it, which is black for the first."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Sequential(
            _conv(2 * width, width), nn.ReLU(), _conv(width, width), nn.ReLU(), _conv(width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        before = F.pad(x, (0, 0, 0, 0, 0, 0, 1, 0))[:-1]
        return F.relu(self.conv(torch.cat((x, before), 1)) + x)


class _Pool(nn.Module):
    """`stride` frames become one."""

    def __init__(self, width: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.conv = nn.Conv2d(width * stride, width, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x.unflatten(0, (-1, self.stride)).flatten(1, 2))


class _Grow(nn.Module):
    """A frame becomes `stride` of them."""

    def __init__(self, width: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.conv = nn.Conv2d(width, width * stride, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x).unflatten(1, (self.stride, -1)).flatten(0, 1)


class TinyVae(nn.Module):
    """Encoder and decoder.

    Args:
        latent_channels: of a latent frame.
    """

    def __init__(self, latent_channels: int = 16) -> None:
        super().__init__()
        layers: list[nn.Module] = [_conv(3, _WIDTH), nn.ReLU()]
        for stride in (2, 2, 1):
            layers += [_Pool(_WIDTH, stride), _conv(_WIDTH, _WIDTH, 2, bias=False)]
            layers += [_Memory(_WIDTH) for _ in range(3)]
        self.encoder = nn.Sequential(*layers, _conv(_WIDTH, latent_channels))
        layers = [_Clamp(), _conv(latent_channels, _DECODER[0]), nn.ReLU()]
        for width, out, stride in zip(_DECODER, _DECODER[1:], (1, 2, 2), strict=False):
            layers += [_Memory(width) for _ in range(3)]
            layers += [nn.Upsample(scale_factor=2), _Grow(width, stride), _conv(width, out, bias=False)]
        self.decoder = nn.Sequential(*layers, nn.ReLU(), _conv(_DECODER[-1], 3))

    def workspace(self) -> None:
        """It needs none; see `WanVae.workspace`."""

    def encode_clip(self, frames: Tensor, workspace: Workspace | None = None) -> Tensor:
        """A video.

        Args:
            frames: [1 + 4 n, 3, H, W] in [0, 1]; the last frame fills the clip up to a multiple of four.
            workspace: see `workspace`.

        Returns:
            [1 + n, c, h, w].
        """
        missing = -len(frames) % STRIDE
        x = torch.cat((frames, frames[-1:].expand(missing, -1, -1, -1))).permute(0, 2, 3, 1).contiguous()
        return _run(self.encoder, x).permute(0, 3, 1, 2)

    def decode_clip(self, latents: Tensor) -> Tensor:
        """A video, [1 + n, c, h, w] -> [1 + 4 n, 3, H, W] in [0, 1]."""
        return signal_to_unit(*self.decode_signal(latents)).permute(0, 3, 1, 2).to(latents.dtype)

    def decode_signal(self, latents: Tensor, workspace: Workspace | None = None) -> tuple[Tensor, Tensor | None]:
        """See `WanVae.decode_signal`."""
        *layers, out = self.decoder
        x = _run(layers, latents.permute(0, 2, 3, 1).contiguous())
        # Out of [0, 1] into [-1, 1]: twice the weights, which is exact, and another bias.
        signal = narrow_conv(x, 2 * out.weight[:, :, None], bordered=False)
        return signal, 2 * out.bias.float() - 1


def _run(layers: Iterable[nn.Module], x: Tensor) -> Tensor:
    """The layers as published, over x [n, h, w, c], in another order with the same result.

    Frames are grown before pixels are doubled, at a quarter of the work. The first latent stands for one frame: the
    three that are made before it go once no later frame sees them. What follows a convolution is computed in it.
    """
    layers = list(layers)
    last = max((i for i, layer in enumerate(layers) if isinstance(layer, _Grow)), default=-1)
    for i, layer in enumerate(layers):
        if isinstance(layer, nn.Conv2d):
            x = _convolve(layer, x, relu=isinstance(layers[min(i + 1, len(layers) - 1)], nn.ReLU))
        elif isinstance(layer, _Memory):
            first, _, second, _, third = layer.conv
            h = _convolve(first, join_frames(x, 2, step=1, delta=-1), relu=True)
            x = _convolve(third, _convolve(second, h, relu=True), relu=True, plus=x)
        elif isinstance(layer, _Pool):
            joined = x if layer.stride == 1 else join_frames(x, layer.stride, step=layer.stride, delta=1)
            x = F.linear(joined, layer.conv.weight.flatten(1))
        elif isinstance(layer, _Grow):
            grown = F.linear(x, layer.conv.weight.flatten(1))
            x = split_frames(grown, layer.stride, skip=STRIDE - 1 if i == last else 0)
        elif isinstance(layer, _Clamp):
            x = layer(x)
    return x


def _convolve(layer: nn.Conv2d, x: Tensor, *, relu: bool, plus: Tensor | None = None) -> Tensor:
    """layer(x) + plus over [n, h, w, c]; with `relu`, no less than zero."""
    x = x.permute(0, 3, 1, 2)
    z = None if plus is None else plus.permute(0, 3, 1, 2)
    if relu and x.is_cuda and x.dtype in (torch.float16, torch.bfloat16) and not torch.is_grad_enabled():
        place = layer.bias, layer.stride, layer.padding, layer.dilation, layer.groups
        if z is None:
            y = torch.ops.aten.cudnn_convolution_relu(x, layer.weight, *place)
        else:
            y = torch.ops.aten.cudnn_convolution_add_relu(x, layer.weight, z, 1.0, *place)
    else:
        y = layer(x) if z is None else layer(x) + z
        y = F.relu(y) if relu else y
    return y.permute(0, 2, 3, 1).contiguous()
