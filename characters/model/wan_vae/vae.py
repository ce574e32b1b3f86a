"""The Wan VAE as a whole: encoder, decoder and the statistics of its latents."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from characters.chunk import FRAMES_PER_CHUNK
from characters.model.config import WanVaeConfig
from characters.model.wan_vae.decoder import RGB, Decoder
from characters.model.wan_vae.encoder import Encoder
from characters.model.wan_vae.layers import linear
from characters.model.wan_vae.statistics import STATISTICS
from characters.model.wan_vae.workspace import Workspace
from kernels.halo import Sum

# The VAE's dtype on a GPU: as small and as fast as bfloat16, with three more bits. bfloat16 leaves 50 dB of a random
# picture if weights alone are rounded, 44 if layers' outputs are too. `kernels.halo` keeps sums in range.
HALF = torch.float16


class WanVae(nn.Module):
    """The autoencoder of Wan 2.1 or, with other sizes, 2.2.

    Latents are normalised: zero mean and unit variance over the model's training data.

    Args:
        config: sizes.
        latent_channels: of a latent frame; 16 and 48 have published statistics, latents of others stay unnormalised.
    """

    def __init__(self, config: WanVaeConfig, latent_channels: int) -> None:
        super().__init__()
        self.encoder = Encoder(config, latent_channels)
        self.decoder = Decoder(config, latent_channels)
        self.quant_conv = nn.Conv3d(2 * latent_channels, 2 * latent_channels, 1)
        self.post_quant_conv = nn.Conv3d(latent_channels, latent_channels, 1)
        mean, std = STATISTICS.get(latent_channels, ([0.0], [1.0]))
        self.register_buffer("mean", torch.tensor(mean), persistent=False)
        self.register_buffer("std", torch.tensor(std), persistent=False)

    def encode_image(self, image: Tensor) -> Tensor:
        """A still as the first chunk of a video, [batch, 3, H, W] in [0, 1] -> [batch, c, h, w]."""
        return torch.cat([self.encode_clip(still[None]) for still in image])

    def workspace(self) -> Workspace:
        """Buffers for clips, one at a time; of those that it has been used for they stay where they are."""
        workspace = Workspace()
        workspace.slot = torch.zeros((), dtype=torch.int64, device=self.mean.device)
        return workspace

    def encode_clip(self, frames: Tensor, workspace: Workspace | None = None) -> Tensor:
        """A video.

        Args:
            frames: [1 + 4 n, 3, H, W] in [0, 1].
            workspace: from `workspace`; default: a new one, which a captured graph can't have.

        Returns:
            [1 + n, c, h, w]: the means of the latents.
        """
        workspace = workspace or self.workspace()
        workspace.clear(0)
        x = frames.permute(0, 2, 3, 1) * 2 - 1
        parts = [x[:1]] + [x[i : i + FRAMES_PER_CHUNK] for i in range(1, len(x), FRAMES_PER_CHUNK)]
        chunks = [self.encoder(part, workspace, first=i == 0) for i, part in enumerate(parts)]
        mean, _ = linear(self.quant_conv, torch.cat(chunks)).chunk(2, -1)
        return ((mean - self.mean) / self.std).permute(0, 3, 1, 2)

    def decode_clip(self, latents: Tensor, workspace: Workspace | None = None) -> Tensor:
        """A video, [1 + n, c, h, w] -> [1 + 4 n, 3, H, W], about [0, 1] (clamp before use)."""
        signal, bias = self.decode_signal(latents, workspace)
        return Sum(signal, bias).value()[..., :RGB].permute(0, 3, 1, 2).to(latents.dtype) * 0.5 + 0.5

    def decode_signal(self, latents: Tensor, workspace: Workspace | None = None) -> tuple[Tensor, Tensor | None]:
        """A video as the last convolution leaves it.

        Args:
            latents: [1 + n, c, h, w].
            workspace: see `encode_clip`.

        Returns:
            [1 + 4 n, H, W, 3 or more], R, G, B about [-1, 1], and the bias that is still to be added, or None; further
            channels are padding.
        """
        workspace = workspace or self.workspace()
        workspace.clear(0)
        # One by one: four together take three times the memory and 2 % less time.
        sums = [self.decode(latent[None], workspace, first=i == 0) for i, latent in enumerate(latents)]
        return torch.cat([part.branch for part in sums]), sums[0].bias

    def decode(self, latents: Tensor, workspace: Workspace, *, first: bool) -> Sum:
        """The next latents of a stream, [n, c, h, w]; see `Decoder.forward`."""
        z = latents.permute(0, 2, 3, 1) * self.std + self.mean
        return self.decoder(linear(self.post_quant_conv, z), workspace, first=first)
