"""Loads the networks that a DiT shard or a decoder runs."""

from __future__ import annotations

import torch

from characters.errors import UserError
from characters.generate.stream import CharacterModel, choose_device, fast_dtype
from characters.model.config import load_model_config, with_context
from characters.model.dit import DiT
from characters.model.frame_decoder import build_autoencoder
from characters.model.materialise import SEED, RandomWeights, build_dit


def load_networks(
    model: str, device: str, layers: tuple[int, int] | None = None, precision: str = "bf16", context: int = 0
) -> CharacterModel:
    """Trained weights where the model has them, random ones where its config names none.

    Args:
        model: name of a model config, or a path to one.
        device: "auto", "cpu", "cuda" or "cuda:N".
        layers: half-open range of the DiT's blocks; all by default, none where only the autoencoder is wanted.
        precision: "bf16" (the device's fast dtype) or "fp8", of the DiT's blocks.
        context: chunks that a chunk attends to; 0 = as the config says.

    Raises:
        UserError: unknown model, no or damaged weights, no such device.
    """
    config = load_model_config(model)
    whole = (0, config.dit.num_layers)
    layers = whole if layers is None else layers
    if config.weights:
        if layers not in (whole, (0, 0)) or precision != "bf16" or context:
            own = "whole, in their own precision and with the context that they were trained with"
            raise UserError(f"model {model!r} has trained weights, which are loaded {own}")
        return CharacterModel.load(model, device)
    if context:
        config = with_context(config, context, model)
    chosen = choose_device(device)
    dtype = fast_dtype(chosen)
    if layers[0] == layers[1]:
        with torch.device("meta"):
            dit = DiT(config, layers).to(dtype).eval().requires_grad_(False)
    else:
        mode = "static" if precision == "fp8" else None
        dit = build_dit(config, RandomWeights(chosen, dtype), layers=layers, fp8=mode)
    with torch.random.fork_rng():
        torch.manual_seed(SEED)  # the same in every process of a session
        autoencoder = build_autoencoder(config, chosen, dtype)
    return CharacterModel(config, dit, autoencoder)
