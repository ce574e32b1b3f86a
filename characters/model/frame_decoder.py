"""What every video decoder looks like to whoever shows a character."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from characters.model.autoencoder import Autoencoder, StreamingDecoder
from characters.model.checkpoint import load_weights
from characters.model.config import ModelConfig
from characters.model.materialise import SEED
from characters.model.taehv import TinyVae
from characters.model.wan_vae.checkpoint import load_vae, translate
from characters.model.wan_vae.rows import Rows
from characters.model.wan_vae.stream import WanStreams
from characters.model.wan_vae.vae import HALF, WanVae


class FrameDecoder(Protocol):
    """Makes the pictures of one session, chunk by chunk.

    Attributes:
        history: so many latents back the next picture depends on: a fresh decoder, reset to the oldest of them and fed
            the others, goes on as one that has seen everything.
    """

    history: int

    def reset(self, portrait: Tensor) -> None:
        """Forget everything and start with the still whose latent is [1, channels, h, w]."""

    def decode(self, latent: Tensor) -> Tensor:
        """The next four frames.

        Args:
            latent: [1, channels, h, w], normalised.

        Returns:
            uint8 [4, H * 3 / 2, W], I420, or [1, 4, H, W, 3], RGB; on a GPU the next call may overwrite it.

        Raises:
            ValueError: the latent has another size; nothing has changed.
            Exception: anything else may have left it halfway; it must be reset, and fed its history again.
        """


def build_autoencoder(
    config: ModelConfig, device: torch.device, dtype: torch.dtype, weights: Path | None = None
) -> Autoencoder | WanVae | TinyVae:
    """The autoencoder that a model's config asks for.

    Args:
        config: a checked model config.
        device: where it will be.
        dtype: that the rest of the model works in; the Wan VAE and TAEHV take float16 for bfloat16 (see `HALF`).
        weights: folder with autoencoder.safetensors. Without it weights are random, the same in every process; the Wan
            VAE's are also the published ones if its config names a file.

    Returns:
        In eval mode; weights are rounded once, from float32.

    Raises:
        UserError: no or damaged weights.
    """
    wan = config.autoencoder.wan
    with torch.device(device), torch.random.fork_rng():
        torch.manual_seed(SEED)
        autoencoder: Autoencoder | WanVae | TinyVae
        if wan is not None:
            autoencoder = load_vae(WanVae(wan, config.latent_channels), wan)
        else:
            autoencoder = TinyVae(config.latent_channels) if config.autoencoder.tiny else Autoencoder(config)
    if weights is not None:
        rename = None if wan is None else lambda tensors: translate(tensors, wan)
        load_weights(autoencoder, weights / "autoencoder.safetensors", rename)
    if not isinstance(autoencoder, WanVae):
        autoencoder.to(memory_format=torch.channels_last)
    if not isinstance(autoencoder, Autoencoder) and dtype == torch.bfloat16:
        # Few CPUs multiply float16.
        dtype = HALF if device.type == "cuda" else torch.float32
    return autoencoder.to(dtype).eval().requires_grad_(False)


def open_decoder(
    autoencoder: Autoencoder | WanVae, config: ModelConfig, *, i420: bool, capture: bool, rows: Rows | None = None
) -> FrameDecoder:
    """A decoder for one session at a time.

    Args:
        autoencoder: in eval mode, from `build_autoencoder`.
        config: of the same model.
        i420: make I420 instead of RGB.
        capture: on a GPU, replay the decoder as a CUDA graph.
        rows: of the Wan VAE: how the picture's rows are dealt to GPUs, each of which is given the whole latent and
            returns the whole frames; None = not at all.
    """
    if isinstance(autoencoder, WanVae):
        wan = config.autoencoder.wan
        assert wan is not None
        return WanStreams(
            autoencoder, config.latent_size, compact=wan.compact_cache, i420=i420, capture=capture, rows=rows
        ).open()
    assert rows is None
    parameter = next(autoencoder.parameters())
    portrait = torch.zeros(
        1, config.latent_channels, *config.latent_size, dtype=parameter.dtype, device=parameter.device
    )
    return StreamingDecoder(autoencoder, portrait, capture=capture, i420=i420)
