"""A stand-in for the stream that draws loudness as brightness, to test the command line without a model.

Run as a program it is `characters` with that stand-in: `python -m tests.characters.cli.fake_stream render ...`.
FAKE_DELAY in the environment makes every chunk take that many seconds.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator

import numpy as np

from characters.chunk import Chunk
from characters.errors import UserError


def frame_size(model: str) -> tuple[int, int]:
    if model != "small":
        raise UserError(f"no model named {model!r}; known: small")
    return 272, 176


class FakeStream:
    height, width, fps = 272, 176, 24

    def run(self, chunks: Iterator[np.ndarray]) -> Iterator[Chunk]:
        for i, pcm in enumerate(chunks):
            assert pcm.shape == (4_000,) and pcm.dtype == np.float32
            time.sleep(float(os.environ.get("FAKE_DELAY", "0")))
            level = np.abs(pcm.reshape(4, 1_000)).max(1)
            frames = np.uint8(np.minimum(255, 16 + 239 * level))[:, None, None, None]
            frames = np.broadcast_to(frames, (4, 272, 176, 3))
            yield Chunk(i, 0, np.ascontiguousarray(frames), pcm, {"dit": 0.050, "decode": 0.020})


def open_stream(model: str, portrait: np.ndarray, seed: int = 0, device: str = "auto") -> FakeStream:
    assert portrait.shape == (272, 176, 3) and portrait.dtype == np.uint8
    return FakeStream()


def main() -> None:
    sys.modules["characters.generate.stream"] = sys.modules[__name__]
    from characters.cli.main import main as characters_main

    characters_main()


if __name__ == "__main__":
    main()
