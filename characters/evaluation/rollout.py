"""Long batched rollouts: what a stream would generate, for many characters at once and faster than a stream.

Chunk i hears the mel window of chunk i and owns frames 4 i .. 4 i + 3, so generated frames match the frames of their
curves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from characters.chunk import FRAMES_PER_CHUNK
from characters.generate.hearing import windows
from characters.model.autoencoder import Autoencoder
from characters.model.config import SamplerConfig
from characters.model.dit import DiT
from characters.model.sampler import Sampler
from kernels.comm.exchange import Exchange

TOKEN_CHUNKS = 32  # chunks whose conditions are encoded together
DECODE_BATCH = 64  # chunks decoded together


@torch.inference_mode()
def rollout(
    dit: DiT,
    portraits: Tensor,
    mel: Tensor,
    motion: Tensor,
    *,
    config: SamplerConfig | None = None,
    seed: int = 0,
    steered: Tensor | None = None,
    exchange: Exchange | None = None,
    progress: Callable[[int], None] | None = None,
) -> Tensor:
    """Generate the latents of a batch of characters, chunk after chunk.

    Nothing in the loop waits for the device. The latents equal those of a `Sampler` with the same tokens.

    Args:
        dit: in eval mode; its dtype is what everything runs in.
        portraits: [batch, channels, h, w], latents of the portraits (`encode_portraits`).
        mel: float [batch, mel frames, 80], normalised log-mel from chunk 0 on; silence follows its end.
        motion: float [batch, 4 * chunks, 12], MOTION_CHANNELS; its length decides how many chunks are made.
        config: steps, commit and context noise; default: the model's own.
        seed: of the sampler's noise.
        steered: [batch] in {0, 1}; rows with 0 ignore `motion`. By default all rows follow it.
        exchange: joins the ranks of a sequence group, which all call this; for a batch of one.
        progress: called with the number of chunks done.

    Returns:
        [batch, chunks, channels, h, w], the dit's dtype, on its device.
    """
    dtype = next(dit.parameters()).dtype
    portraits = portraits.to(dtype)
    batch, chunks = len(portraits), motion.shape[1] // FRAMES_PER_CHUNK
    sampler = Sampler(dit, portraits, seed=seed, config=config, exchange=exchange)
    sampler.prefill(dit.conditioning.reference(batch).to(dtype))
    latents = portraits.new_empty((batch, chunks, *portraits.shape[1:]))
    for index, tokens in enumerate(condition(dit, mel, motion, steered)):
        latents[:, index] = sampler.sample(tokens)
        if progress is not None:
            progress(index + 1)
    return latents


@torch.inference_mode()
def condition(dit: DiT, mel: Tensor, motion: Tensor, steered: Tensor | None = None) -> Iterator[Tensor]:
    """The condition tokens [batch, conditions, dim] of one chunk after another; arguments as for `rollout`."""
    parameter = next(dit.parameters())
    batch, chunks = len(motion), motion.shape[1] // FRAMES_PER_CHUNK
    # One wide signal, so that every row is cut at the same places.
    wide = mel.transpose(0, 1).flatten(1)
    for first in range(0, chunks, TOKEN_CHUNKS):
        count = min(TOKEN_CHUNKS, chunks - first)
        heard = windows(wide, first, count).unflatten(2, (batch, -1)).transpose(1, 2)
        moved = motion[:, first * FRAMES_PER_CHUNK : (first + count) * FRAMES_PER_CHUNK]
        moved = moved.unflatten(1, (count, FRAMES_PER_CHUNK)).transpose(0, 1)
        tokens, _ = dit.conditioning(
            mel=heard.flatten(0, 1).to(parameter.device, parameter.dtype),
            motion=moved.flatten(0, 1).to(parameter.device, parameter.dtype),
            steered=None if steered is None else steered.to(parameter.device).repeat(count),
        )
        yield from tokens.unflatten(0, (count, batch))


@torch.inference_mode()
def encode_portraits(autoencoder: Autoencoder, images: Tensor) -> Tensor:
    """uint8 [batch, 3, H, W] -> latents [batch, channels, h, w] in the autoencoder's dtype and device."""
    like = autoencoder.mean
    return torch.cat(
        [autoencoder.encode_image(part.to(like.device).to(like.dtype) / 255) for part in images.split(DECODE_BATCH)]
    )


@torch.inference_mode()
def encode_clips(autoencoder: Autoencoder, frames: Tensor) -> Tensor:
    """uint8 [batch, 4 * chunks, 3, H, W] -> latents [batch, chunks, channels, h, w]."""
    like = autoencoder.mean
    chunks = frames.unflatten(1, (-1, FRAMES_PER_CHUNK))
    parts = [
        autoencoder.encode(part.to(like.device).to(like.dtype) / 255)
        for part in chunks.flatten(0, 1).split(DECODE_BATCH)
    ]
    return torch.cat(parts).unflatten(0, chunks.shape[:2])


@torch.inference_mode()
def decode_window(autoencoder: Autoencoder, latents: Tensor, portraits: Tensor, first: int, chunks: int) -> Tensor:
    """Frames of a part of a rollout, equal to those that a stream decodes.

    Args:
        latents: [batch, all chunks, channels, h, w]; portraits: [batch, channels, h, w], the latent before chunk 0.
        first, chunks: which part.

    Returns:
        uint8 [batch, 4 * chunks, 3, H, W], on the autoencoder's device.
    """
    like = autoencoder.mean
    wanted = latents[:, first : first + chunks]
    start = portraits[:, None] if first == 0 else latents[:, first - 1 : first]
    before = torch.cat((start.to(wanted.dtype), wanted[:, :-1]), 1)
    pairs = zip(wanted.flatten(0, 1).split(DECODE_BATCH), before.flatten(0, 1).split(DECODE_BATCH), strict=True)
    frames = [to_bytes(autoencoder.decode(*(x.to(like.device, like.dtype) for x in pair))) for pair in pairs]
    return torch.cat(frames).unflatten(0, wanted.shape[:2]).flatten(1, 2)


def to_bytes(images: Tensor) -> Tensor:
    """float [..., 3, H, W] about [0, 1] -> uint8."""
    return (images.float().clamp(0, 1) * 255).round().to(torch.uint8)
