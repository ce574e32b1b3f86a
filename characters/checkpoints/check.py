"""Whether a model on this machine is whole and runs."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from characters.checkpoints.convert import sha256
from characters.checkpoints.store import find_weights, read_record
from characters.checkpoints.structure import FileReport, inspect
from characters.device import choose_device
from characters.errors import UserError
from characters.generate.networks import load_networks
from characters.generate.stream import Stream
from characters.model.config import ModelConfig

_SIDE = 64  # of a window model's frames on a CPU: a whole one would take minutes


@dataclass(frozen=True)
class Pass:
    """One chunk that a model made.

    Attributes:
        device: it was made on.
        height, width: of its frames, in pixels.
        frames: of it.
        seconds: it took, without loading.
    """

    device: str
    height: int
    width: int
    frames: int
    seconds: float


def weights_of(config: ModelConfig, name: str) -> Path:
    """Where a model's weights are.

    Raises:
        UserError: it has none, or they are not on this machine.
    """
    if not config.weights:
        raise UserError(f"model {name!r} has no weights: nobody has trained it")
    folder = find_weights(config.weights)
    if folder is None:
        raise UserError(f"the weights of {name!r} are not on this machine: characters models get {config.weights}")
    return folder


def check_files(config: ModelConfig, folder: Path) -> list[FileReport]:
    """Every file's tensors, and whether its bytes are those that were brought.

    Raises:
        UserError: a file is missing or cannot be read.
    """
    reports, kept = inspect(config, folder), read_record(folder)
    for report in reports:
        known = kept.get(report.name)
        if known is None:
            continue
        try:
            digest = sha256(folder / report.name)
        except OSError as error:
            raise UserError(f"cannot read {folder / report.name}: {error.strerror or error}") from error
        if digest != known.sha256:
            report.wrong.append(f"its SHA-256 is {digest[:12]}…, not {known.sha256[:12]}… as when it was brought")
    return reports


def run_once(config: ModelConfig, folder: Path, device: str = "auto") -> Pass:
    """Make one chunk, of a grey portrait and noise.

    A window model makes it in frames of 64 x 64 on a CPU.

    Raises:
        UserError: the weights cannot be loaded, or what comes out is a picture of one colour.
    """
    chosen = choose_device(device)
    if chosen.type == "cpu" and config.window is not None:
        config = dataclasses.replace(config, height=min(_SIDE, config.height), width=min(_SIDE, config.width))
    networks = load_networks(config, chosen, weights=folder)
    random = np.random.default_rng(0)
    portrait = random.integers(60, 200, (config.height, config.width, 3), np.uint8)
    stream = Stream(networks, portrait)
    samples = stream.generator.clock.samples
    began = time.perf_counter()
    (chunk,) = stream.run(iter([random.standard_normal(samples).astype(np.float32) * 0.1]))
    seconds = time.perf_counter() - began
    if not chunk.frames.std():
        raise UserError(f"the weights at {folder} draw nothing: every pixel of a chunk is the same")
    return Pass(str(chosen), config.height, config.width, len(chunk.frames), seconds)
