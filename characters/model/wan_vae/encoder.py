"""The Wan VAE's encoder: pixel frames in, latent distributions out."""

from __future__ import annotations

import itertools

import torch.nn.functional as F
from torch import Tensor, nn

from characters.model.config import WanVaeConfig
from characters.model.wan_vae.decoder import CHANNEL_STEP, RGB, MiddleBlock
from characters.model.wan_vae.layers import CausalConv3d, Downsample, ResidualBlock, RmsNorm, average_down
from characters.model.wan_vae.workspace import Workspace
from kernels.halo import Sum


class DownBlock(nn.Module):
    """Residual blocks, then downsampling unless it is the last block.

    Args:
        width, out: channels of input and output.
        shortcut: around the whole block (Wan 2.2).
        down: None = no downsampling; else whether frames are halved too.
    """

    def __init__(self, width: int, out: int, blocks: int, *, down: bool | None, shortcut: bool) -> None:
        super().__init__()
        self.resnets = nn.ModuleList([ResidualBlock(width if i == 0 else out, out) for i in range(blocks)])
        self.downsampler = None if down is None else Downsample(out, time=down)
        self.shortcut = shortcut

    def forward(self, x: Sum, workspace: Workspace, *, first: bool) -> Sum:
        """[t, h, w, width] -> [t or t / 2, h or h / 2, w or w / 2, out]."""
        start = x
        for resnet in self.resnets:
            x = resnet(x, workspace)
        down = self.downsampler
        if down is not None:
            x = down(x, workspace, first=first)
        if not self.shortcut:
            return x
        time, dtype = down is not None and down.time_conv is not None, x.branch.dtype
        around = average_down(start.value().to(dtype), x.shape[-1], time=time, space=down is not None)
        return Sum(x.value().to(dtype), residual=around)


class Encoder(nn.Module):
    """Pixel frames to means and log variances of latents: one frame at first, four from then on.

    Args:
        config: of the autoencoder.
        latent_channels: of a latent frame.
    """

    def __init__(self, config: WanVaeConfig, latent_channels: int) -> None:
        super().__init__()
        widths = [config.encoder_dim * m for m in (1, *config.multipliers)]
        last = len(widths) - 2
        self.conv_in = CausalConv3d(RGB * config.patch**2, widths[0], 3)
        self.down_blocks = nn.ModuleList(
            DownBlock(
                width,
                out,
                config.residual_blocks,
                down=None if i == last else config.temporal[i],
                shortcut=config.shortcuts,
            )
            for i, (width, out) in enumerate(itertools.pairwise(widths))
        )
        self.mid_block = MiddleBlock(widths[-1])
        self.norm_out = RmsNorm(widths[-1], 3)
        self.conv_out = CausalConv3d(widths[-1], 2 * latent_channels, 3)
        self.patch = config.patch

    def forward(self, frames: Tensor, workspace: Workspace, *, first: bool) -> Tensor:
        """Encode the next frames of a video.

        Args:
            frames: [1 or 4, H, W, 3] in [-1, 1].
            first: the video's first, a single frame.

        Returns:
            [1, h, w, 2 c].
        """
        # Channels are [RGB, column in the patch, row in the patch].
        x = frames.unflatten(2, (-1, self.patch)).unflatten(1, (-1, self.patch)).permute(0, 1, 3, 5, 4, 2).flatten(3)
        workspace.fresh = first
        x = self.conv_in(Sum(F.pad(x, (0, -x.shape[-1] % CHANNEL_STEP))), workspace)
        for block in self.down_blocks:
            x = block(x, workspace, first=first)
        x = self.mid_block(x, workspace)
        return self.conv_out(x, workspace, self.norm_out).value().to(frames.dtype)
