"""Static FP8 scales, measured on a few chunks of a stream."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from characters.model.dit import DiT
from characters.model.quantise import Fp8Linear, fp8_layers, set_head_peaks
from characters.model.sampler import Sampler
from characters.model.window_sampler import WindowSampler

CHUNKS = 4
RING = 2


@torch.inference_mode()
def calibrate(
    dit: DiT,
    reference: Tensor,
    still: Tensor,
    tokens: Tensor,
    *,
    seed: int = 0,
    chunks: int = CHUNKS,
    hidden: Tensor | None = None,
    clip: Tensor | None = None,
    sound: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Run a quantised DiT on a few chunks and set its static scales.

    Meanwhile its activations are scaled row by row, and its cache keeps the model's dtype. Every rank of a sequence
    group does this on its own, for all rows and heads, and finds the same scales.

    Args:
        dit: quantised, static or dynamic; or a part of it.
        reference: [batch, channels, h, w], latents of portraits.
        still: [batch, conditions, dim], conditions of the reference pass.
        tokens: [batch, conditions, dim], conditions of the chunks; or [chunks, batch, conditions, dim], one set each.
        seed: of the noise.
        chunks: how many, not counting the reference's.
        hidden: [1 + chunks, ...], what the part before returned; for all parts of a pipeline but the first.
        clip: see `Sampler.prefill`.
        sound: see `Sampler.sample`; of all chunks.

    Returns:
        [1 + chunks, ...], what the next part's `calibrate` takes.
    """
    # A long ring of all heads in the model's dtype would not fit beside the weights.
    sampler = Sampler(dit, reference, seed=seed, observe=True, ring=min(dit.config.ring, RING))
    layers = _observe(dit)
    made = [sampler.prefill(still, None if hidden is None else hidden[:1], clip)]
    for chunk in range(chunks):
        told = tokens if tokens.dim() == 3 else tokens[chunk]
        given = None if hidden is None else hidden[1 + chunk].clone()
        made.append(sampler.sample(told, given, sound)[None].clone())
    _settle(dit, layers, sampler.peaks)
    return torch.cat(made if dit.head is None else made[1:])


@torch.inference_mode()
def calibrate_window(dit: DiT, reference: Tensor, heard: Sequence[Tensor], *, seed: int = 0) -> None:
    """Run a quantised DiT of a window model on a few windows and set its static scales; see `calibrate`.

    Args:
        dit: quantised, whole.
        reference: [frames, channels, h, w], latents of a portrait held still.
        heard: [frames, tokens, dim] each, what the latent frames of each window hear.
        seed: of the noise.
    """
    layers, sampler = _observe(dit), WindowSampler(dit, observe=True)
    generator = torch.Generator(reference.device).manual_seed(seed)
    history = reference[:1]
    held = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=reference.device)
    for tokens in heard:
        shape = (sampler.draws, *reference.shape)
        noise = torch.randn(shape, generator=generator, device=reference.device).to(reference.dtype)
        history = sampler.sample(tokens, reference, history, held, noise)[-1:]
    assert sampler.context.peaks is not None
    _settle(dit, layers, sampler.context.peaks)


def _observe(dit: DiT) -> list[Fp8Linear]:
    layers = list(fp8_layers(dit).values())
    for layer in layers:
        layer.observe()
    return layers


def _settle(dit: DiT, layers: Sequence[Fp8Linear], peaks: Tensor) -> None:
    """Keep what was observed; peaks are those of q, k and v, float32 [layers, 3, heads]."""
    for layer in layers:
        if layer.static:
            layer.set_peak(layer.peak)
        layer.peak = None
    set_head_peaks(dit, peaks)
