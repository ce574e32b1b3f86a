"""The clock of a model, and the unit that everything moves in: the chunk.

The models made here move in chunks of 4 pixel frames = 1 latent frame = 1/6 s. At 24 kHz such a chunk owns exactly
4,000 samples and, at a hop of 250 samples, exactly 16 mel frames. Other models have other clocks: `Clock` says which,
and a frame of any clock owns a whole number of samples, so no rate in the system ever needs rounding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

FPS = 24
FRAMES_PER_CHUNK = 4
CHUNK_SECONDS = FRAMES_PER_CHUNK / FPS

SAMPLE_RATE = 24_000
SAMPLES_PER_CHUNK = SAMPLE_RATE * FRAMES_PER_CHUNK // FPS

MEL_BINS = 80
MEL_HOP = 250
MEL_FRAMES_PER_CHUNK = SAMPLES_PER_CHUNK // MEL_HOP


@dataclass(frozen=True, slots=True)
class Clock:
    """The unit in which a model makes video; by default that of the models made here.

    Attributes:
        fps: frames a second.
        frames: of a chunk.

    Raises:
        ValueError: a frame of such a clock does not own a whole number of samples.
    """

    fps: int = FPS
    frames: int = FRAMES_PER_CHUNK

    def __post_init__(self) -> None:
        if self.fps < 1 or self.frames < 1 or SAMPLE_RATE % self.fps:
            raise ValueError(f"a clock needs whole samples a frame; {self.fps} does not divide {SAMPLE_RATE}")

    @property
    def seconds(self) -> float:
        """Of a chunk."""
        return self.frames / self.fps

    @property
    def samples(self) -> int:
        """Samples of sound that a chunk owns, at 24 kHz."""
        return self.frames * self.frame_samples

    @property
    def frame_samples(self) -> int:
        """Samples of sound that a frame owns, at 24 kHz."""
        return SAMPLE_RATE // self.fps


# Articulation of the mouth, one row per video frame. The renderer draws it, and the model learns to draw it.
# open, round, teeth and tongue lie in [0, 1]; wide in [-1, 1].
MOUTH_CHANNELS = ("open", "wide", "round", "teeth", "tongue")

# Motion that is not speech, one row per video frame. blink lies in [0, 1] (1 = shut), the others in about [-1, 1].
# gaze_x, gaze_y, yaw, x: positive is to the viewer's right; gaze_y, y, pitch: positive is down.
MOTION_CHANNELS = (
    "blink",
    "gaze_x",
    "gaze_y",
    "brow",
    "smile",
    "x",
    "y",
    "roll",
    "scale",
    "yaw",
    "pitch",
    "breath",
)


@dataclass(frozen=True, slots=True)
class Chunk:
    """One finished chunk.

    Attributes:
        index: position on the session's clock; chunk i owns the samples from i * clock.samples on.
        response_id: id of the reply that the chunk belongs to; barge-in cancels it.
        frames: uint8 [clock.frames, H, W, 3], RGB.
        pcm: float32 [clock.samples], mono at 24 kHz, the sound of these frames.
        timings: seconds that each stage took, by its name.
    """

    index: int
    response_id: int
    frames: np.ndarray
    pcm: np.ndarray
    timings: dict[str, float]


def rechunk(blocks: Iterable[np.ndarray], samples: int = SAMPLES_PER_CHUNK) -> Iterator[np.ndarray]:
    """Regroup float32 [n] blocks of any length into float32 [samples] chunks, the last one padded with zeros."""
    chunk = np.zeros(samples, np.float32)
    filled = 0
    for block in blocks:
        at = 0
        while at < len(block):
            take = min(len(block) - at, samples - filled)
            chunk[filled : filled + take] = block[at : at + take]
            at, filled = at + take, filled + take
            if filled == samples:
                yield chunk
                chunk, filled = np.zeros(samples, np.float32), 0
    if filled:
        yield chunk
