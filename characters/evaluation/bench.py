"""The model under measurement and how much of it is measured."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from characters.errors import UserError
from characters.evaluation.reader import FrameReader, Reading
from characters.evaluation.rollout import decode_window, encode_portraits, rollout
from characters.generate.networks import load_networks
from characters.model.autoencoder import Autoencoder
from characters.model.checkpoint import WEIGHTS_FOLDER
from characters.model.config import ModelConfig, SamplerConfig, load_model_config
from characters.model.dit import DiT

READ_BATCH = 256


@dataclass(frozen=True)
class Amount:
    """How much is measured.

    Attributes:
        identities: characters in the drift run, and in the checks of reader and autoencoder.
        minutes: length of the drift run.
        clips: held-out clips of each voice. per_clip: characters that say each clip.
        clip_chunks: clips are cut to this many chunks; None = never.
        check_chunks: chunks of each character in the checks of reader and autoencoder.
        planted_rows, planted_frames: windows for the planted artefacts, and frames of each.
        idle_rows, idle_seconds: characters and seconds in silence.
        edge_seconds: length of the first and last part of the drift run.
        compared: frames of each part that are compared with the truth.
        timed_chunks: chunks timed.
        points: moments between the ends at which drift is measured, as shares of the run.
    """

    identities: int = 64
    minutes: float = 10.0
    clips: int = 16
    per_clip: int = 4
    clip_chunks: int | None = None
    check_chunks: int = 12
    planted_rows: int = 64
    planted_frames: int = 8
    idle_rows: int = 16
    idle_seconds: float = 20.0
    edge_seconds: float = 10.0
    compared: int = 24
    timed_chunks: int = 120
    points: tuple[float, ...] = field(default=(0.1, 0.2, 0.5))

    def __post_init__(self) -> None:
        if self.identities < 1:
            raise UserError(f"--identities is {self.identities}; at least one character must be measured")
        if not 0.05 <= self.minutes <= 24 * 60:
            raise UserError(f"--minutes is {self.minutes:g}; it must lie between 0.05 and 1440")


QUICK = Amount(
    identities=4, minutes=0.25, clips=1, per_clip=1, clip_chunks=18, check_chunks=3, planted_rows=4, planted_frames=3,
    idle_rows=2, idle_seconds=6.0, edge_seconds=2.0, compared=6, timed_chunks=24, points=(0.5,),
)  # fmt: skip


@dataclass(frozen=True)
class Bench:
    """A model, its conditions, and the network that measures it.

    Attributes:
        config, dit, autoencoder: the model, in eval mode, in `dtype`.
        reader: float32.
    """

    config: ModelConfig
    dit: DiT
    autoencoder: Autoencoder
    reader: FrameReader
    device: torch.device
    dtype: torch.dtype
    seed: int = 0

    @staticmethod
    def load(
        model: str, weights: Path | None, sampler: SamplerConfig, device: torch.device, dtype: torch.dtype, seed: int
    ) -> Bench:
        """Read the networks from `weights`, by default the model's own folder; `sampler` replaces the model's own.

        Raises:
            UserError: unknown model, or no or unfit weights.
        """
        config = replace(load_model_config(model), sampler=sampler)
        if weights is None:
            if not config.weights:
                raise UserError(f"model {model!r} has no trained weights; name a folder with --weights")
            weights = WEIGHTS_FOLDER / config.weights
        networks = load_networks(config, device, dtype=dtype, weights=weights)
        assert isinstance(networks.autoencoder, Autoencoder)
        reader = FrameReader.load(weights / "reader.safetensors", device)
        return Bench(config, networks.dit, networks.autoencoder, reader, device, dtype, seed)

    def portraits(self, images: Tensor) -> Tensor:
        """uint8 [n, 3, H, W] -> latents."""
        return encode_portraits(self.autoencoder, images)

    def roll(self, portraits: Tensor, mel: Tensor, motion: Tensor, label: str = "") -> Tensor:
        """`rollout` under the bench's conditions, with a progress bar if it has a label."""
        from rich.console import Console
        from rich.progress import Progress

        mel = mel.to(self.device, self.dtype)
        with Progress(console=Console(stderr=True), transient=True, disable=not label) as bar:
            task = bar.add_task(label, total=motion.shape[1] // 4)
            return rollout(
                self.dit, portraits, mel, motion, config=self.config.sampler, seed=self.seed,
                progress=lambda done: bar.update(task, completed=done) if label else None,
            )  # fmt: skip

    def frames(self, latents: Tensor, portraits: Tensor, first: int, chunks: int) -> Tensor:
        """Decode a part of a rollout: uint8 [rows, 4 * chunks, 3, H, W]."""
        return decode_window(self.autoencoder, latents, portraits, first, chunks)

    @torch.inference_mode()
    def read(self, frames: Tensor) -> Reading:
        """uint8 [rows, n, 3, H, W] -> what each frame shows, [rows, n, ...]."""
        parts = [self.reader(part.float() / 255) for part in frames.flatten(0, 1).split(READ_BATCH)]
        return Reading(*(torch.cat(p).unflatten(0, frames.shape[:2]) for p in zip(*parts, strict=True)))


def numpy(x: Tensor) -> np.ndarray:
    """Any tensor -> float64 array."""
    return x.double().cpu().numpy()
