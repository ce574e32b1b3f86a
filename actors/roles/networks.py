"""Loads the networks that a DiT shard or a decoder runs."""

from __future__ import annotations

import torch

from characters.model.autoencoder import Autoencoder
from characters.model.config import load_model_config
from characters.model.dit import DiT
from characters.stream import CharacterModel, choose_device, fast_dtype

# Random weights are the same in every process of a session.
_SEED = 57


def load_networks(model: str, device: str) -> CharacterModel:
    """Trained weights where the model has them, random ones where its config names none.

    Args:
        model: name of a model config, or a path to one.
        device: "auto", "cpu", "cuda" or "cuda:N".

    Raises:
        UserError: unknown model, no or damaged weights, no such device.
    """
    config = load_model_config(model)
    if config.weights:
        return CharacterModel.load(model, device)
    chosen = choose_device(device)
    # Made where they will live and in their final dtype: 57B parameters fit nowhere else.
    before = torch.get_default_dtype()
    torch.set_default_dtype(fast_dtype(chosen))
    try:
        with torch.random.fork_rng(), torch.device(chosen):
            torch.manual_seed(_SEED)
            dit, autoencoder = DiT(config), Autoencoder(config)
    finally:
        torch.set_default_dtype(before)
    return CharacterModel(config, dit.eval().requires_grad_(False), autoencoder.eval().requires_grad_(False))
