"""What every generator looks like: a portrait and sound in, chunks of video out."""

from __future__ import annotations

import time
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from characters.chunk import Clock
from characters.generate.hearing import Hearing


class Generator(Protocol):
    """Makes one session's video, chunk by chunk, on one process or on one of several that hold a model together.

    Attributes:
        clock: in which it makes video.
        hearing: how it takes sound.
        emits: what `generate` returns: "latents", for a decoder, or "frames".
        timings: seconds of the newest chunk by stage; true on a GPU only if it was told to wait for the GPU.
    """

    clock: Clock
    hearing: Hearing
    emits: Literal["latents", "frames"]
    timings: dict[str, float]

    def start(self, portrait: np.ndarray, seed: int = 0) -> None:
        """Begin a session, or begin it anew.

        Args:
            portrait: uint8 [H, W, 3], RGB, of the model's frame size.
            seed: of noise and idle motion.

        Raises:
            UserError: the portrait does not fit the model.
        """

    def generate(self, heard: Tensor) -> Tensor:
        """Make the next chunk. If it raises, nothing has advanced and it can be called again.

        Args:
            heard: float32, from `hearing`, on any device.

        Returns:
            What `emits` says; on a GPU the next call may overwrite it.
        """

    def snapshot(self) -> dict[str, Any]:
        """What another process needs to go on from here; cheap."""

    def restore(self, state: dict[str, Any]) -> None:
        """After `start`: go on where a `snapshot` was taken."""

    def cancel(self) -> None:
        """From any thread: a `generate` that waits for another process stops waiting and raises ExchangeBroken."""

    def close(self) -> None:
        """Let go of what the session holds. The model stays loaded."""


class StageClock:
    """Seconds by stage.

    Args:
        device: where the work is done.
        exact: wait for a GPU at the end of each stage, so that its seconds are its own.
    """

    def __init__(self, device: torch.device, exact: bool = True) -> None:
        self.seconds: dict[str, float] = {}
        self._waits, self._device = exact and device.type == "cuda", device
        self._last = time.perf_counter()

    def stage(self, name: str) -> None:
        """End the stage `name`."""
        if self._waits:
            torch.cuda.current_stream(self._device).synchronize()
        now = time.perf_counter()
        self.seconds[name] = now - self._last
        self._last = now
