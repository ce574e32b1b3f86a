"""The Wan VAE's decoder: a latent frame in, four pixel frames out, with all that it remembers in a `Workspace`."""

from __future__ import annotations

import itertools

import torch.nn.functional as F
from torch import Tensor, nn

from characters.model.config import WanVaeConfig
from characters.model.wan_vae.layers import (
    Attention,
    CausalConv3d,
    ResidualBlock,
    RmsNorm,
    Upsample,
    channels_last,
    convolve,
    duplicate_up,
)
from characters.model.wan_vae.workspace import Workspace
from kernels.halo import PAST, Sum, fill_halo
from kernels.narrow_conv import narrow_conv

RGB = 3
# Tensor cores take channels by the eight.
CHANNEL_STEP = 8


class MiddleBlock(nn.Module):
    """Residual block, attention, residual block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.resnets = nn.ModuleList([ResidualBlock(width, width), ResidualBlock(width, width)])
        self.attentions = nn.ModuleList([Attention(width)])

    def forward(self, x: Sum, workspace: Workspace) -> Sum:
        """[t, h, w, c] -> [t, h, w, c]."""
        x = self.attentions[0](self.resnets[0](x, workspace), workspace)
        return self.resnets[1](x, workspace)


class UpBlock(nn.Module):
    """Residual blocks, then upsampling unless it is the last block.

    Args:
        width, out: channels of input and residual blocks.
        halve: upsampling halves the channels (Wan 2.1).
        shortcut: around the whole block (Wan 2.2).
        up: None = no upsampling; else whether frames double too.
    """

    def __init__(self, width: int, out: int, blocks: int, *, up: bool | None, halve: bool, shortcut: bool) -> None:
        super().__init__()
        self.resnets = nn.ModuleList([ResidualBlock(width if i == 0 else out, out) for i in range(blocks)])
        self.upsampler = None if up is None else Upsample(out, out // 2 if halve else out, time=up)
        self.shortcut = shortcut and up is not None

    def forward(self, x: Sum, workspace: Workspace, *, first: bool) -> Sum:
        """[t, h, w, width] -> [t or 2 t, h or 2 h, w or 2 w, out or out / 2]."""
        start = x
        for resnet in self.resnets:
            x = resnet(x, workspace)
        if self.upsampler is None:
            return x
        x = self.upsampler(x, workspace, first=first)
        if self.shortcut:
            time = self.upsampler.time_conv is not None
            dtype = x.branch.dtype
            x = x._replace(residual=duplicate_up(start.value().to(dtype), x.shape[-1], time=time, first=first))
        return x


class Decoder(nn.Module):
    """Latent frames to pixel frames, one latent at a time.

    Args:
        config: of the autoencoder.
        latent_channels: of a latent frame.
    """

    def __init__(self, config: WanVaeConfig, latent_channels: int) -> None:
        super().__init__()
        widths = [config.decoder_dim * m for m in (config.multipliers[-1], *reversed(config.multipliers))]
        last = len(widths) - 2
        self.conv_in = CausalConv3d(latent_channels, widths[0], 3)
        self.mid_block = MiddleBlock(widths[0])
        self.up_blocks = nn.ModuleList()
        for i, (width, out) in enumerate(itertools.pairwise(widths)):
            self.up_blocks.append(
                UpBlock(
                    width // 2 if i > 0 and not config.shortcuts else width,
                    out,
                    config.residual_blocks + 1,
                    up=None if i == last else config.temporal[last - 1 - i],
                    halve=not config.shortcuts,
                    shortcut=config.shortcuts,
                )
            )
        self.norm_out = RmsNorm(widths[-1], 3)
        self.conv_out = CausalConv3d(widths[-1], RGB * config.patch**2, 3)
        self.patch = config.patch
        # At a latent's own size memory is cheap and an error stays long: it shows in the pictures of 24 more latents.
        for part in (self.conv_in, self.mid_block, self.up_blocks[0].resnets):
            for module in part.modules():
                if isinstance(module, CausalConv3d):
                    module.exact = True

    def forward(self, z: Tensor, workspace: Workspace, *, first: bool) -> Sum:
        """Decode the next latents of the stream `workspace.slot`.

        Args:
            z: [n, h, w, c].
            first: the stream's first latent, alone, which makes one frame instead of four.

        Returns:
            [4 n or 1, H, W, 3 or more], R, G, B around [-1, 1]; further channels are padding.
        """
        workspace.fresh = first
        x = self.conv_in(Sum(z), workspace)
        x = self.mid_block(x, workspace)
        for block in self.up_blocks:
            x = block(x, workspace, first=first)
        return self._head(x, workspace, first)

    def _head(self, x: Sum, workspace: Workspace, first: bool) -> Sum:
        t, h, w, c = x.shape
        halo = workspace.halo((PAST + t,), h, w, c, 1, x.branch)
        cache = workspace.cache(self.conv_out, h, w, c, x.branch)
        fill_halo(x, halo, gamma=self.norm_out.gamma.flatten(), cache=cache, slot=workspace.slot)
        workspace.rows.exchange(halo)
        conv = self.conv_out
        if first:  # nothing but zeros in front of the frame
            halo, weight = halo[PAST:], conv.weight[:, :, -1:]
        else:
            weight = conv.weight
        if self.patch == 1:
            return Sum(narrow_conv(halo, weight, bordered=True), conv.bias)
        padding = -conv.out_channels % CHANNEL_STEP
        y = convolve(
            halo, workspace.weight((conv, first), lambda: channels_last(F.pad(weight, (0, 0) * 4 + (0, padding))))
        )
        # Channels are [RGB, column in the patch, row in the patch].
        y = (y[..., : conv.out_channels] + conv.bias).unflatten(-1, (RGB, self.patch, self.patch))
        return Sum(y.permute(0, 1, 5, 2, 4, 3).flatten(3, 4).flatten(1, 2).contiguous())
