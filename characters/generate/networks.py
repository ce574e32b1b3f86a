"""The networks of one model on one device: read, or made, where they run and in the precision that runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from characters.checkpoints.store import find_weights
from characters.device import choose_device, fast_dtype
from characters.errors import UserError
from characters.model.audio_projection import AudioProjection
from characters.model.autoencoder import Autoencoder
from characters.model.checkpoint import load_weights
from characters.model.config import ModelConfig, load_model_config
from characters.model.dit import DiT
from characters.model.frame_decoder import build_autoencoder
from characters.model.lora import Lora
from characters.model.materialise import RandomWeights, SafetensorsWeights, Source, build, build_dit
from characters.model.taehv import TinyVae
from characters.model.wan_vae.vae import WanVae
from characters.model.wav2vec2 import Wav2Vec2, translate


@dataclass(frozen=True)
class Networks:
    """Shared by every session that runs on the device.

    Attributes:
        config: a checked model config.
        dit: in eval mode: the whole, or a part of it; on the meta device where only the autoencoder is wanted.
        autoencoder: in eval mode.
        ear, projection: of a window model, in eval mode.
    """

    config: ModelConfig
    dit: DiT
    autoencoder: Autoencoder | WanVae | TinyVae
    ear: Wav2Vec2 | None = None
    projection: AudioProjection | None = None

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
    if config.window is None:
        return Networks(config, dit, autoencoder)
    return Networks(config, dit, autoencoder, *_hearing(config, source, weights, chosen, dtype))


def _hearing(
    config: ModelConfig, source: Source, weights: Path | None, device: torch.device, dtype: torch.dtype
) -> tuple[Wav2Vec2, AudioProjection]:
    """Ear and projection of a window model. The projection lies beside the DiT, or in a file of its own, which wins."""
    window = config.window
    assert window is not None
    if weights is None:
        ear = build(lambda: Wav2Vec2(window.ear), source, "ear.")
    else:
        ear = Wav2Vec2(window.ear).eval().requires_grad_(False)
        load_weights(ear, weights / "ear.safetensors", translate)
        own = weights / "audio_proj.safetensors"
        source = SafetensorsWeights(own, config, device, dtype) if own.is_file() else source
    projection = build(lambda: AudioProjection(window.projection), source, "audio_proj.")
    return ear.to(device, dtype), projection
