"""Causal log-mel features of speech: what the video model hears.

Signal: mono float audio at 24 kHz, full scale 1.0. Frame k is computed from the 800 samples that end at sample
(k + 1) * 250, so it never depends on sound that has not been played yet. 16 frames make a chunk.

Each value is log(max(power in the mel band, 1e-5)), then (x - MEL_MEAN) / MEL_SCALE, which puts speech at about zero
mean and unit scale; digital silence is the constant `SILENCE`. Mel scale: 2595 log10(1 + f / 700) (O'Shaughnessy),
triangular bands of unit height.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from characters.chunk import MEL_BINS, MEL_FRAMES_PER_CHUNK, MEL_HOP, SAMPLE_RATE, SAMPLES_PER_CHUNK
from characters.model.config import ModelConfig

WINDOW = 800
FFT_SIZE = 1024
F_MIN = 50.0
F_MAX = 8000.0
POWER_FLOOR = 1e-5

# Mean and spread of the log power over the training corpus, pauses left out.
MEL_MEAN = -4.0
MEL_SCALE = 4.0

# The value that every bin takes when nothing sounds, and that stands in for frames before the start or past the end.
SILENCE = float((np.log(POWER_FLOOR) - MEL_MEAN) / MEL_SCALE)

# What one chunk sees: frames before it, its own, and frames after it (8 / 96 s = 83 ms of look-ahead).
PAST_FRAMES = 24
AHEAD_FRAMES = 8
WINDOW_FRAMES = PAST_FRAMES + MEL_FRAMES_PER_CHUNK + AHEAD_FRAMES

# uint8 code 0 is digital silence exactly; code 255 lies above the loudest speech. One step is 0.36 dB.
_CODE_MIN = SILENCE
_CODE_MAX = (9.5 - MEL_MEAN) / MEL_SCALE
_CODE_STEP = (_CODE_MAX - _CODE_MIN) / 255


def _mel_filters() -> np.ndarray:
    """float32 [FFT_SIZE // 2 + 1, 80]: triangular bands between F_MIN and F_MAX."""
    frequencies = np.linspace(0, SAMPLE_RATE / 2, FFT_SIZE // 2 + 1)[:, None]
    low, high = (2595 * np.log10(1 + f / 700) for f in (F_MIN, F_MAX))
    edges = 700 * (10 ** (np.linspace(low, high, MEL_BINS + 2) / 2595) - 1)
    rising = (frequencies - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - frequencies) / (edges[2:] - edges[1:-1])
    return np.maximum(0, np.minimum(rising, falling)).astype(np.float32)


# float32 [513, 80], applied to the power spectrum of FFT_SIZE.
MEL_FILTERS = _mel_filters()
_HANN = np.hanning(WINDOW).astype(np.float32)


def _analyse(samples: np.ndarray) -> np.ndarray:
    """float32 [WINDOW + (F - 1) * MEL_HOP] -> float32 [F, 80]."""
    frames = np.lib.stride_tricks.sliding_window_view(samples, WINDOW)[::MEL_HOP]
    mel = np.empty((len(frames), MEL_BINS), np.float32)
    for start in range(0, len(frames), 2048):  # bounds the memory of long signals
        spectrum = np.fft.rfft(frames[start : start + 2048] * _HANN, FFT_SIZE, axis=1)
        power = spectrum.real**2 + spectrum.imag**2
        mel[start : start + 2048] = np.log(np.maximum(power.astype(np.float32) @ MEL_FILTERS, POWER_FLOOR))
    return (mel - MEL_MEAN) / MEL_SCALE


class LogMel:
    """Streaming log-mel: feed samples as they come, take frames as they complete. About 0.3 ms a chunk on one core.

    The frames of a signal do not depend on how it was cut into pushes (to float32 rounding).
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget the past: the next frame is frame 0 of a new signal."""
        self._tail = np.zeros(WINDOW - MEL_HOP, np.float32)

    def push(self, samples: np.ndarray) -> np.ndarray:
        """float32 [n] samples, any n -> float32 [frames, 80]: the frames that these samples completed."""
        self._tail = np.concatenate([self._tail, np.asarray(samples, np.float32)])
        frames = (len(self._tail) - WINDOW) // MEL_HOP + 1 if len(self._tail) >= WINDOW else 0
        if frames == 0:
            return np.empty((0, MEL_BINS), np.float32)
        mel = _analyse(self._tail)
        self._tail = self._tail[frames * MEL_HOP :].copy()
        return mel


def log_mel(pcm: np.ndarray) -> np.ndarray:
    """float32 [n] samples -> float32 [n // 250, 80], the whole signal at once."""
    return LogMel().push(pcm)


def windows(mel: Tensor, first_chunk: int, chunks: int) -> Tensor:
    """What each of some consecutive chunks hears.

    Args:
        mel: float [F, 80], frame 0 at the start of chunk 0.
        first_chunk: index of the first chunk wanted; may be negative.
        chunks: how many.

    Returns:
        [chunks, 48, 80] of mel's dtype and device: 24 frames before each chunk, its own 16 and 8 after it. Frames
        outside `mel` have the value of digital silence. A copy, not a view.
    """
    start = first_chunk * MEL_FRAMES_PER_CHUNK - PAST_FRAMES
    stop = (first_chunk + chunks) * MEL_FRAMES_PER_CHUNK + AHEAD_FRAMES
    inside = mel[max(start, 0) : max(stop, 0)]
    padded = mel.new_full((stop - start, mel.shape[1]), SILENCE)
    offset = max(-start, 0)
    padded[offset : offset + len(inside)] = inside
    return padded.unfold(0, WINDOW_FRAMES, MEL_FRAMES_PER_CHUNK).transpose(1, 2).contiguous()


class Hearing(Protocol):
    """How a model takes sound: what one chunk hears, made from the samples around it.

    Attributes:
        past, ahead: samples at 24 kHz before and after a chunk that it hears as well.
        shape: of what it hears.
    """

    past: int
    ahead: int
    shape: tuple[int, ...]

    def hear(self, pcm: np.ndarray) -> np.ndarray:
        """float32 [past + samples of the chunk + ahead] -> float32 [*shape]."""


class MelHearing:
    """48 frames of log-mel: 24 before the chunk, its own 16 and 8 after it. See `Hearing`.

    The features are computed afresh for every chunk, so that sound which was cancelled leaves no trace in them.
    """

    past = (PAST_FRAMES + -(-WINDOW // MEL_HOP)) * MEL_HOP  # with what the first frame is computed from, in whole hops
    ahead = AHEAD_FRAMES * MEL_HOP
    shape: tuple[int, ...] = (WINDOW_FRAMES, MEL_BINS)

    def hear(self, pcm: np.ndarray) -> np.ndarray:
        """See `Hearing.hear`."""
        return LogMel().push(pcm)[-WINDOW_FRAMES:]


class WaveHearing:
    """Sound itself at 16 kHz: the chunk's own at its end, and what came before it. See `Hearing`.

    Args:
        seconds: of sound.
        samples: of a chunk, at 24 kHz.
    """

    ahead = 0

    def __init__(self, seconds: float, samples: int) -> None:
        count = round(seconds * EAR_RATE)
        self.shape: tuple[int, ...] = (count,)
        # With what the resampling filter sees on either side of the first sample.
        self.past = count * SAMPLE_RATE // EAR_RATE - samples + _REACH

    def hear(self, pcm: np.ndarray) -> np.ndarray:
        """See `Hearing.hear`."""
        padded = np.concatenate((pcm, np.zeros(_REACH, np.float32)))  # what follows is not known
        frames = np.lib.stride_tricks.sliding_window_view(padded, 2 * _REACH + 2)[::3]
        return (frames[: self.shape[0] // 2] @ _PHASES).reshape(-1).astype(np.float32)


def hearing_of(config: ModelConfig) -> Hearing:
    """How a model takes sound, without loading it."""
    wave = config.window or config.s2v
    return MelHearing() if wave is None else WaveHearing(wave.heard, config.clock.samples)


# Two samples at 16 kHz from every three at 24 kHz, by a windowed sinc that ends at 7.6 kHz.
EAR_RATE = 16_000
_REACH = 48


def _phases() -> np.ndarray:
    """float32 [2 * _REACH + 2, 2]: what each input sample gives to the two outputs, at 0 and 1.5 samples."""
    offsets = np.arange(2 * _REACH + 2)[:, None] - _REACH - np.array([0.0, 1.5])
    cutoff = 2 * 7_600 / SAMPLE_RATE
    window = np.where(np.abs(offsets) < _REACH + 1, np.cos(np.pi * offsets / (2 * (_REACH + 2))) ** 2, 0.0)
    taps = cutoff * np.sinc(cutoff * offsets) * window
    return (taps / taps.sum(0)).astype(np.float32)


_PHASES = _phases()


class Listener:
    """Cuts a growing signal into what each chunk hears.

    Args:
        hearing: of the model.
        samples: of a chunk.
    """

    def __init__(self, hearing: Hearing, samples: int = SAMPLES_PER_CHUNK) -> None:
        self._hearing, self._samples = hearing, samples
        self._pcm = np.zeros(hearing.past, np.float32)

    def push(self, pcm: np.ndarray) -> None:
        """Append float32 [n] samples."""
        self._pcm = np.concatenate((self._pcm, pcm))

    def pop(self) -> np.ndarray | None:
        """What the next chunk hears, or None until its look-ahead has come."""
        count = self._hearing.past + self._samples + self._hearing.ahead
        if len(self._pcm) < count:
            return None
        heard = self._hearing.hear(self._pcm[:count])
        self._pcm = self._pcm[self._samples :]
        return heard


def quantise(mel: np.ndarray) -> np.ndarray:
    """float [...] normalised log-mel -> uint8 [...], for storage. Error at most 0.011 (0.18 dB) below the clip."""
    return np.clip(np.round((mel - _CODE_MIN) / _CODE_STEP), 0, 255).astype(np.uint8)


def dequantise(codes: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """uint8 [...] -> normalised log-mel [...] of `dtype`, on the same device."""
    return (codes.float() * _CODE_STEP + _CODE_MIN).to(dtype)
