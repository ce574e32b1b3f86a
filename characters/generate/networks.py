"""The networks of one model on one device: read, or made, where they run and in the precision that runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from characters.checkpoints.store import find_weights
from characters.device import choose_device, fast_dtype
from characters.errors import UserError
from characters.model.audio_projection import AudioProjection
from characters.model.autoencoder import Autoencoder
from characters.model.checkpoint import load_tensors, load_weights
from characters.model.config import ModelConfig, S2vConfig, load_model_config
from characters.model.dit import DiT
from characters.model.frame_decoder import build_autoencoder
from characters.model.lora import Lora
from characters.model.materialise import RandomWeights, SafetensorsWeights, Source, build, build_dit
from characters.model.speech_tokens import SpeechTokens
from characters.model.taehv import TinyVae
from characters.model.wan_vae.vae import WanVae
from characters.model.wav2vec2 import Wav2Vec2, Wav2Vec2Config, translate

# Tokens that a prompt is padded to with zeros, as the published models were trained.
PROMPT_TOKENS = 512


@dataclass(frozen=True)
class Networks:
    """Shared by every session that runs on the device.

    Attributes:
        config: a checked model config.
        dit: in eval mode: the whole, or a part of it; on the meta device where only the autoencoder is wanted.
        autoencoder: in eval mode.
        ear: of a model that hears by wav2vec 2.0, in eval mode.
        projection: of a window model, what turns the ear's states into tokens, in eval mode.
        speech: of a model with s2v, the same.
        prompt: [1, n, text_dim], of a model with s2v: a text encoder's tokens, which every session is told.
    """

    config: ModelConfig
    dit: DiT
    autoencoder: Autoencoder | WanVae | TinyVae
    ear: Wav2Vec2 | None = None
    projection: AudioProjection | None = None
    speech: SpeechTokens | None = None
    prompt: Tensor | None = None

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return next(self.autoencoder.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """Of the DiT's embeddings and of latents."""
        return next(self.dit.parameters()).dtype

    def picture(self, portrait: np.ndarray) -> Tensor:
        """uint8 [H, W, 3] -> [1, 3, H, W] in [0, 1], on the device, in the autoencoder's dtype.

        Raises:
            UserError: it has another size or dtype.
        """
        expected = (self.config.height, self.config.width, 3)
        if portrait.shape != expected or portrait.dtype != np.uint8:
            raise UserError(f"the portrait must be uint8 {expected}, not {portrait.dtype} {portrait.shape}")
        own = next(self.autoencoder.parameters()).dtype
        # A copy: what has travelled between processes is read-only, which PyTorch does not know.
        return torch.from_numpy(portrait.copy()).to(self.device).permute(2, 0, 1)[None].to(own) / 255

    @torch.inference_mode()
    def encode_portrait(self, portrait: np.ndarray) -> Tensor:
        """uint8 [H, W, 3] -> [1, channels, h, w], the latent of the portrait; raises as `picture`."""
        assert not isinstance(self.autoencoder, TinyVae)
        return self.autoencoder.encode_image(self.picture(portrait)).to(self.dtype)

    @torch.inference_mode()
    def encode_still(self, portrait: np.ndarray, frames: int) -> Tensor:
        """uint8 [H, W, 3] -> [1 + (frames - 1) / 4, channels, h, w]: the portrait held for so many frames."""
        assert isinstance(self.autoencoder, WanVae)
        return self.autoencoder.encode_clip(self.picture(portrait).expand(frames, -1, -1, -1)).to(self.dtype)


def load_networks(
    model: str | ModelConfig = "small",
    device: str | torch.device = "auto",
    *,
    layers: tuple[int, int] | None = None,
    precision: str = "bf16",
    dtype: torch.dtype | None = None,
    weights: Path | None = None,
    random_weights: bool = False,
) -> Networks:
    """Load a model, or one process's part of it.

    Args:
        model: name of a model config, a path to one, or a checked config.
        device: "auto" (a GPU if there is one), "cpu", "cuda", "cuda:N", or a device.
        layers: half-open range of the DiT's blocks; all by default, none where only the autoencoder is wanted.
        precision: "bf16" (the DiT keeps `dtype`) or "fp8", of its blocks and its KV cache.
        dtype: of all else; default: what is fast on the device.
        weights: folder with dit.safetensors (or a folder dit of shards) and autoencoder.safetensors; of a window model
            also ear.safetensors, and where they are apart lora.safetensors and audio_proj.safetensors; default: what
            the config names.
        random_weights: draw weights that nobody has trained, the same in every process, where there are none.

    Raises:
        UserError: unknown model, no or damaged weights, no such device.
    """
    config = model if isinstance(model, ModelConfig) else load_model_config(model)
    if weights is None and config.weights:
        weights = find_weights(config.weights)
    if weights is None and not random_weights:
        name = "this model" if isinstance(model, ModelConfig) else f"model {model!r}"
        if config.files:
            raise UserError(f"the weights of {name} are not on this machine: characters models get {config.weights}")
        raise UserError(f"{name} has no trained weights and so draws no character; use --model small")
    chosen = choose_device(device) if isinstance(device, str) else device
    dtype = dtype or fast_dtype(chosen)
    layers = layers or (0, config.dit.num_layers)
    autoencoder = build_autoencoder(config, chosen, dtype, weights)
    if layers[0] == layers[1]:
        with torch.device("meta"):
            dit = DiT(config, layers).to(dtype).eval().requires_grad_(False)
        return Networks(config, dit, autoencoder)
    source: Source = RandomWeights(chosen, dtype)
    if weights is not None:
        sharded = weights / "dit"
        source = SafetensorsWeights(sharded if sharded.is_dir() else weights / "dit.safetensors", config, chosen, dtype)
        if (adapter := weights / "lora.safetensors").is_file():
            source = Lora(source, adapter, config.lora_alpha)
    dit = build_dit(config, source, layers=layers, fp8="static" if precision == "fp8" else None)
    if config.s2v is not None:
        return Networks(config, dit, autoencoder, **_s2v(config, config.s2v, source, weights, chosen, dtype))
    if config.window is None:
        return Networks(config, dit, autoencoder)
    return Networks(config, dit, autoencoder, *_hearing(config, source, weights, chosen, dtype))


def _hearing(
    config: ModelConfig, source: Source, weights: Path | None, device: torch.device, dtype: torch.dtype
) -> tuple[Wav2Vec2, AudioProjection]:
    """Ear and projection of a window model. The projection lies beside the DiT, or in a file of its own, which wins."""
    window = config.window
    assert window is not None
    ear = _ear(window.ear, source, weights)
    if weights is not None:
        own = weights / "audio_proj.safetensors"
        source = SafetensorsWeights(own, config, device, dtype) if own.is_file() else source
    projection = build(lambda: AudioProjection(window.projection), source, "audio_proj.")
    return ear.to(device, dtype), projection


def _ear(config: Wav2Vec2Config, source: Source, weights: Path | None) -> Wav2Vec2:
    if weights is None:
        return build(lambda: Wav2Vec2(config), source, "ear.")
    ear = Wav2Vec2(config).eval().requires_grad_(False)
    load_weights(ear, weights / "ear.safetensors", translate)
    return ear


def _s2v(
    config: ModelConfig, s2v: S2vConfig, source: Source, weights: Path | None, device: torch.device, dtype: torch.dtype
) -> dict[str, Any]:
    """Ear, speech tokens and prompt of a model with s2v."""
    prompt = torch.zeros(1, PROMPT_TOKENS, config.dit.text_dim)
    if weights is not None:
        path = weights / "prompt.safetensors"
        told = load_tensors(path).get("prompt")
        if told is None or told.dim() != 2 or told.shape[1] != config.dit.text_dim or len(told) > PROMPT_TOKENS:
            raise UserError(f"{path} must hold `prompt`, [up to {PROMPT_TOKENS}, {config.dit.text_dim}]")
        prompt[0, : len(told)] = told
    return {
        "ear": _ear(s2v.ear, source, weights).to(device, dtype),
        "speech": build(lambda: SpeechTokens(s2v.speech, config.dit.dim), source, "speech."),
        "prompt": prompt.to(device, dtype),
    }
