"""The single-process stream: speech in, chunks of video out."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from characters.chunk import Chunk, rechunk
from characters.generate.cached import CachedGenerator
from characters.generate.decoder import LatentDecoder
from characters.generate.generator import Generator
from characters.generate.hearing import Listener
from characters.generate.networks import Networks, load_networks
from characters.generate.window import WindowGenerator
from characters.model.config import load_model_config


class Stream:
    """One character talking for as long as sound comes in, in constant memory.

    Args:
        networks: of the model.
        portrait: uint8 [H, W, 3].
        seed: of noise and idle motion.
    """

    def __init__(self, networks: Networks, portrait: np.ndarray, seed: int = 0) -> None:
        self.height, self.width = networks.config.height, networks.config.width
        self.generator = open_generator(networks)
        self.generator.start(portrait, seed)
        self._decoder: LatentDecoder | None = None
        if self.generator.emits == "latents":
            self._decoder = LatentDecoder(networks, i420=False)
            self._decoder.start(portrait)
        self._index = 0

    @property
    def fps(self) -> int:
        """Frames a second."""
        return self.generator.clock.fps

    def run(self, pcm: Iterator[np.ndarray]) -> Iterator[Chunk]:
        """Generate video for sound; a chunk is decoded while the DiT makes the next one.

        Args:
            pcm: float32 [n] blocks of any length, mono at 24 kHz.

        Yields:
            A chunk for as much sound as it lasts, in order, two chunks later: one for what the model hears of the
            future, one for the decoder. Silence fills the last.
        """
        with ThreadPoolExecutor(1, "decoder") as decoder:
            last: Future[Chunk] | None = None
            for heard, block in self._heard(pcm):
                index, made, timings = self._generate(heard)
                # A copy: on a GPU the generator makes the next one in the same place.
                this = decoder.submit(self._show, index, made.clone(), block, timings)
                if last is not None:
                    yield last.result()
                last = this
            if last is not None:
                yield last.result()

    def step(self, heard: np.ndarray, pcm: np.ndarray) -> Chunk:
        """Generate the next chunk.

        Args:
            heard: float32, from the generator's `hearing`.
            pcm: float32, the chunk's own sound.
        """
        index, made, timings = self._generate(heard)
        return self._show(index, made, pcm, timings)

    def _generate(self, heard: np.ndarray) -> tuple[int, Tensor, dict[str, float]]:
        """The next chunk's index, what the generator emits, and seconds by stage."""
        made, index = self.generator.generate(torch.from_numpy(heard)), self._index
        self._index += 1
        return index, made, self.generator.timings

    def _show(self, index: int, made: Tensor, pcm: np.ndarray, timings: dict[str, float]) -> Chunk:
        """The chunk of what the generator emitted."""
        if self._decoder is not None:
            made = self._decoder.decode(made)
            timings = timings | self._decoder.timings
        return Chunk(index=index, response_id=0, frames=made.cpu().numpy(), pcm=pcm, timings=timings)

    def _heard(self, pcm: Iterator[np.ndarray]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """What each chunk hears, and its own sound."""
        hearing, samples = self.generator.hearing, self.generator.clock.samples
        listener = Listener(hearing, samples)
        waiting: deque[np.ndarray] = deque()
        for block in rechunk(pcm, samples):
            listener.push(block)
            waiting.append(block)
            while (heard := listener.pop()) is not None:
                yield heard, waiting.popleft()
        # The sound has ended; silence follows for the look-ahead of the last chunk.
        listener.push(np.zeros(hearing.ahead, np.float32))
        while waiting and (heard := listener.pop()) is not None:
            yield heard, waiting.popleft()


def open_generator(networks: Networks) -> Generator:
    """The generator that a model's config asks for, for one session at a time; pictures in RGB."""
    if networks.config.window is not None:
        return WindowGenerator(networks, i420=False)
    return CachedGenerator(networks)


def frame_size(model: str = "small") -> tuple[int, int]:
    """(height, width) of a model's frames, without loading it."""
    config = load_model_config(model)
    return config.height, config.width


def open_stream(*, model: str = "small", portrait: np.ndarray, seed: int = 0, device: str = "auto") -> Stream:
    """Load a model and start a stream; see `load_networks` and `Stream`.

    On a CPU, DiT and decoder get half of PyTorch's threads each: they work at the same time, and fewer threads lose
    less in waiting for each other when other programs want the cores.
    """
    networks = load_networks(model, device)
    if networks.device.type == "cpu":
        torch.set_num_threads(max(1, torch.get_num_threads() // 2))
    return Stream(networks, portrait, seed)
