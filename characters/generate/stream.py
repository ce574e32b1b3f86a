"""The single-process stream: speech in, chunks of video out."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from characters.chunk import Chunk
from characters.generate.cached import CachedGenerator
from characters.generate.decoder import LatentDecoder
from characters.generate.generator import Generator
from characters.generate.hearing import Listener
from characters.generate.networks import Networks, load_networks
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
        self.generator: Generator = CachedGenerator(networks)
        self._decoder = LatentDecoder(networks, i420=False)
        self.generator.start(portrait, seed)
        self._decoder.start(portrait)
        self._index = 0

    def run(self, pcm: Iterator[np.ndarray]) -> Iterator[Chunk]:
        """Generate video for sound; a chunk is decoded while the DiT makes the next one.

        Args:
            pcm: float32 [4000] blocks, mono at 24 kHz.

        Yields:
            One chunk per block, in order, two blocks later: one for the look-ahead of 83 ms, one for the decoder.
        """
        with ThreadPoolExecutor(1, "decoder") as decoder:
            last: Future[Chunk] | None = None
            for heard, block in self._heard(pcm):
                index, latent, timings = self._generate(heard)
                # A copy: on a GPU the generator makes the next one in the same place.
                this = decoder.submit(self._show, index, latent.clone(), block, timings)
                if last is not None:
                    yield last.result()
                last = this
            if last is not None:
                yield last.result()

    def step(self, heard: np.ndarray, pcm: np.ndarray) -> Chunk:
        """Generate the next chunk.

        Args:
            heard: float32, from the generator's `hearing`.
            pcm: float32 [4000], the chunk's own sound.
        """
        index, latent, timings = self._generate(heard)
        return self._show(index, latent, pcm, timings)

    def _generate(self, heard: np.ndarray) -> tuple[int, Tensor, dict[str, float]]:
        """The next chunk's index and latent, and seconds by stage."""
        latent, index = self.generator.generate(torch.from_numpy(heard)), self._index
        self._index += 1
        return index, latent, self.generator.timings

    def _show(self, index: int, latent: Tensor, pcm: np.ndarray, timings: dict[str, float]) -> Chunk:
        """The chunk of a latent."""
        frames = self._decoder.decode(latent).cpu().numpy()
        return Chunk(index=index, response_id=0, frames=frames, pcm=pcm, timings=timings | self._decoder.timings)

    def _heard(self, pcm: Iterator[np.ndarray]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """What each chunk hears, and its own sound."""
        hearing, samples = self.generator.hearing, self.generator.clock.samples
        listener = Listener(hearing, samples)
        waiting: deque[np.ndarray] = deque()
        for block in pcm:
            if block.shape != (samples,):
                raise ValueError(f"expected a block of {samples} samples, got {block.shape}")
            listener.push(block)
            waiting.append(block)
            while (heard := listener.pop()) is not None:
                yield heard, waiting.popleft()
        # The sound has ended; silence follows for the look-ahead of the last chunk.
        listener.push(np.zeros(hearing.ahead, np.float32))
        while waiting and (heard := listener.pop()) is not None:
            yield heard, waiting.popleft()


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
