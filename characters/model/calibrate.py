"""Static FP8 scales, measured on a few chunks of a stream."""

from __future__ import annotations

import torch
from torch import Tensor

from characters.model.dit import DiT
from characters.model.quantise import fp8_layers, set_head_peaks
from characters.model.sampler import Sampler

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
    layers = fp8_layers(dit)
    for layer in layers.values():
        layer.observe()
    made = [sampler.prefill(still, None if hidden is None else hidden[:1], clip)]
    for chunk in range(chunks):
        told = tokens if tokens.dim() == 3 else tokens[chunk]
        given = None if hidden is None else hidden[1 + chunk].clone()
        made.append(sampler.sample(told, given, sound)[None].clone())
    for layer in layers.values():
        if layer.static:
            layer.set_peak(layer.peak)
        layer.peak = None
    set_head_peaks(dit, sampler.peaks)
    return torch.cat(made if dit.head is None else made[1:])
