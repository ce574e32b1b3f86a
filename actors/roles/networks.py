"""Loads the networks that a DiT shard or a decoder runs."""

from __future__ import annotations

import zlib

import torch
from torch import nn

from characters.errors import UserError
from characters.model.config import ModelConfig, load_model_config
from characters.model.dit import DiT
from characters.model.frame_decoder import build_autoencoder
from characters.model.quantise import quantise_block
from characters.stream import CharacterModel, choose_device, fast_dtype

# Random weights are the same in every process of a session.
_SEED = 57


def load_networks(
    model: str, device: str, layers: tuple[int, int] | None = None, precision: str = "bf16"
) -> CharacterModel:
    """Trained weights where the model has them, random ones where its config names none.

    Args:
        model: name of a model config, or a path to one.
        device: "auto", "cpu", "cuda" or "cuda:N".
        layers: half-open range of the DiT's blocks; all by default, none where only the autoencoder is wanted.
        precision: "bf16" (the device's fast dtype) or "fp8", of the DiT's blocks.

    Raises:
        UserError: unknown model, no or damaged weights, no such device.
    """
    config = load_model_config(model)
    whole = (0, config.dit.num_layers)
    layers = whole if layers is None else layers
    if config.weights:
        if layers not in (whole, (0, 0)) or precision != "bf16":
            raise UserError(f"model {model!r} has trained weights, which are loaded whole and in their own precision")
        return CharacterModel.load(model, device)
    chosen = choose_device(device)
    before = torch.get_default_dtype()
    torch.set_default_dtype(fast_dtype(chosen))
    try:
        with torch.random.fork_rng():
            dit = _random_dit(config, layers, chosen, precision)
            with torch.device(chosen):
                torch.manual_seed(_SEED)
                autoencoder = build_autoencoder(config)
    finally:
        torch.set_default_dtype(before)
    return CharacterModel(config, dit.eval().requires_grad_(False), autoencoder.eval().requires_grad_(False))


def _random_dit(config: ModelConfig, layers: tuple[int, int], device: torch.device, precision: str) -> DiT:
    """A part of the DiT, made block by block where it will live: 57B parameters fit nowhere else."""
    with torch.device("meta"):
        dit = DiT(config, layers)
    if not dit.blocks:
        return dit
    for name, module in (*dit.blocks.items(), *((n, m) for n, m in dit.named_children() if m is not dit.blocks)):
        module.to_empty(device=device)
        _randomise(module, name)
        if name in dit.blocks and precision == "fp8":
            quantise_block(module, "static")
    return dit


def _randomise(module: nn.Module, prefix: str) -> None:
    """Fresh weights that depend on a parameter's name and not on which other parts are made beside it."""
    for name, part in module.named_modules(prefix=prefix):
        torch.manual_seed(_SEED + zlib.crc32(name.encode()))
        reset = getattr(part, "reset_parameters", getattr(part, "_reset_parameters", None))
        if reset is not None:
            reset()
            continue
        with torch.no_grad():
            for parameter in part.parameters(recurse=False):
                parameter.normal_(std=parameter.shape[-1] ** -0.5)
