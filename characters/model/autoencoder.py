"""Causal streaming video autoencoder of the small model: 4 frames <-> one latent frame, 64 times smaller.

Frames pass through a shared 2-D network each; they meet only at 1/16 of the frame, where four of them become one
latent. A joint network over stacked frames was tried first and froze the mouth inside a chunk: it had no reason to
keep four frames apart at full resolution. The decoder also sees the previous latent, which is its whole state.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from characters.chunk import FRAMES_PER_CHUNK
from characters.model.config import ModelConfig
from characters.model.graph import Graph
from kernels.i420 import rgb_to_i420

# Latents are squashed softly to this range, so that no outlier can run away in a long rollout.
LATENT_BOUND = 3.0


def channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions; starts as the identity."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        nn.init.zeros_(self.conv2.weight)
        nn.init.zeros_(self.conv2.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv2(F.silu(self.conv1(F.silu(x))))


class Encoder(nn.Module):
    """[batch, 4, 3, H, W] in [0, 1] -> [batch, channels, H/16, W/16], not normalised."""

    def __init__(self, channels: list[int], latent_channels: int) -> None:
        super().__init__()
        fine, middle, coarse, joint = channels
        self.frame = nn.Sequential(
            nn.Conv2d(3 * 16, fine, 3, padding=1),
            ResidualBlock(fine),
            nn.PixelUnshuffle(2),
            nn.Conv2d(4 * fine, middle, 1),
            ResidualBlock(middle),
            ResidualBlock(middle),
            nn.PixelUnshuffle(2),
            nn.Conv2d(4 * middle, coarse, 1),
            ResidualBlock(coarse),
        )
        self.join = nn.Sequential(
            nn.Conv2d(FRAMES_PER_CHUNK * coarse, joint, 1),
            ResidualBlock(joint),
            ResidualBlock(joint),
            nn.SiLU(),
            nn.Conv2d(joint, latent_channels, 1),
        )
        with torch.no_grad():
            self.join[-1].weight.mul_(20)  # spread the first latents over the bounded range

    def forward(self, frames: Tensor) -> Tensor:
        x = channels_last(F.pixel_unshuffle(frames.flatten(0, 1) * 2 - 1, 4))
        x = self.frame(x).unflatten(0, (-1, FRAMES_PER_CHUNK)).flatten(1, 2)
        x = self.join(channels_last(x))
        return LATENT_BOUND * torch.tanh(x / LATENT_BOUND)


class Decoder(nn.Module):
    """[batch, channels, h, w], current and previous -> [batch, 4, 3, 16 h, 16 w] around [0, 1]."""

    def __init__(self, channels: list[int], latent_channels: int) -> None:
        super().__init__()
        fine, middle, joint = channels
        self.join = nn.Sequential(
            nn.Conv2d(2 * latent_channels, joint, 3, padding=1),
            ResidualBlock(joint),
            ResidualBlock(joint),
            nn.Conv2d(joint, FRAMES_PER_CHUNK * 4 * middle, 1),
        )
        self.frame = nn.Sequential(
            nn.PixelShuffle(2),
            ResidualBlock(middle),
            ResidualBlock(middle),
            nn.Conv2d(middle, 4 * fine, 1),
            nn.PixelShuffle(2),
            ResidualBlock(fine),
            ResidualBlock(fine),
            nn.SiLU(),
            nn.Conv2d(fine, 3 * 16, 3, padding=1),
        )

    def forward(self, latent: Tensor, previous: Tensor) -> Tensor:
        x = self.join(channels_last(torch.cat((latent, previous), 1)))
        x = channels_last(x.unflatten(1, (FRAMES_PER_CHUNK, -1)).flatten(0, 1))
        x = F.pixel_shuffle(self.frame(x), 4) * 0.5 + 0.5
        return x.unflatten(0, (-1, FRAMES_PER_CHUNK))


class Autoencoder(nn.Module):
    """Encoder, decoder and the statistics that give latents zero mean and unit variance.

    Args:
        config: a checked `ModelConfig`.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        parts, channels = config.autoencoder, config.latent_channels
        self.encoder = Encoder(parts.encoder_channels, channels)
        self.decoder = Decoder(parts.decoder_channels, channels)
        self.register_buffer("mean", torch.zeros(channels, 1, 1))
        self.register_buffer("std", torch.ones(channels, 1, 1))

    def encode(self, frames: Tensor) -> Tensor:
        """Frames to latents; each chunk on its own.

        Args:
            frames: [batch, 4, 3, H, W] in [0, 1].

        Returns:
            [batch, channels, H/16, W/16], normalised.
        """
        return (self.encoder(frames) - self.mean) / self.std

    def encode_image(self, image: Tensor) -> Tensor:
        """A still, [batch, 3, H, W] in [0, 1] -> the latent of a chunk in which nothing moves."""
        return self.encode(image[:, None].expand(-1, FRAMES_PER_CHUNK, -1, -1, -1))

    def decode(self, latent: Tensor, previous: Tensor) -> Tensor:
        """One chunk, given the latent before it.

        Args:
            latent, previous: [batch, channels, h, w], normalised.

        Returns:
            [batch, 4, 3, H, W], about [0, 1] (clamp before use).
        """
        return self.decoder(latent * self.std + self.mean, previous * self.std + self.mean)

    def decode_clip(self, latents: Tensor, first_previous: Tensor) -> Tensor:
        """A whole clip at once, equal to decoding it chunk by chunk.

        Args:
            latents: [batch, chunks, channels, h, w]; first_previous: [batch, channels, h, w], the portrait's latent.

        Returns:
            [batch, 4 * chunks, 3, H, W].
        """
        previous = torch.cat((first_previous[:, None], latents[:, :-1]), 1)
        frames = self.decode(latents.flatten(0, 1), previous.flatten(0, 1))
        return frames.unflatten(0, (len(latents), -1)).flatten(1, 2)


class StreamingDecoder:
    """Decodes chunk by chunk; its state is the previous latent, starting with the portrait's. A `FrameDecoder`.

    Args:
        autoencoder: in eval mode.
        portrait: [batch, channels, h, w], the latent of the portrait.
        capture: on a GPU, replay the decoder as one CUDA graph; `decode` then returns the same buffer every time.
        i420: make I420 instead of RGB, for a batch of one.
    """

    history = 1

    def __init__(
        self, autoencoder: Autoencoder, portrait: Tensor, *, capture: bool = False, i420: bool = False
    ) -> None:
        self._autoencoder, self._i420 = autoencoder, i420
        self._previous = portrait.clone()
        self._pixels = Graph(self._decode) if capture else self._decode
        if capture and portrait.is_cuda:
            self.decode(portrait)  # captures, before there is a session to wait for it

    def reset(self, portrait: Tensor) -> None:
        """See `FrameDecoder.reset`."""
        self._previous.copy_(portrait)

    @torch.inference_mode()
    def decode(self, latent: Tensor) -> Tensor:
        """[batch, channels, h, w] -> uint8 [batch, 4, H, W, 3], RGB, or [4, H * 3 / 2, W], I420.

        A failed call leaves the state as it was.
        """
        pixels = self._pixels(latent, self._previous)
        self._previous.copy_(latent)
        return pixels

    def _decode(self, latent: Tensor, previous: Tensor) -> Tensor:
        frames = self._autoencoder.decode(latent, previous).float().clamp(0, 1)
        rgb = (frames * 255).round().to(torch.uint8).permute(0, 1, 3, 4, 2).contiguous()
        return rgb_to_i420(rgb[0]) if self._i420 else rgb
