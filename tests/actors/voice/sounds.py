"""Sounds that stand in for a user: synthesised speech, room noise, coughs."""

from __future__ import annotations

from functools import cache

import numpy as np

from characters.chunk import SAMPLE_RATE
from characters.speech import open_voice


@cache
def _voice(engine: str):
    return open_voice(engine)


@cache
def say(text: str, engine: str = "espeak:en-us") -> np.ndarray:
    """float32 [n] at 24 kHz: the speech alone, without silence around it."""
    pcm = np.concatenate([piece.pcm for piece in _voice(engine).speak(text)])
    loud = np.flatnonzero(np.abs(pcm) > 0.02)
    return (0.7 * pcm[loud[0] : loud[-1] + 1]).astype(np.float32)


def noise(seconds: float, level: float = 0.002, seed: int = 0) -> np.ndarray:
    """White noise, by default that of a quiet room."""
    return (level * np.random.default_rng(seed).standard_normal(int(seconds * SAMPLE_RATE))).astype(np.float32)


def burst(milliseconds: float, low: float, high: float, seed: int = 0) -> np.ndarray:
    """A burst of noise between two frequencies, with the sharp rise and slow fall of a cough or a knock."""
    count = int(milliseconds * SAMPLE_RATE / 1000)
    spectrum = np.fft.rfft(np.random.default_rng(seed).standard_normal(count))
    frequency = np.fft.rfftfreq(count, 1 / SAMPLE_RATE)
    spectrum[(frequency < low) | (frequency > high)] = 0
    sound = (
        np.fft.irfft(spectrum, count) * np.minimum(1, np.arange(count) / 240) * np.exp(-4 * np.arange(count) / count)
    )
    return (0.6 * sound / np.abs(sound).max()).astype(np.float32)


def cough() -> np.ndarray:
    """Two bursts, 0.5 s."""
    gap = np.zeros(SAMPLE_RATE // 10, np.float32)
    return np.concatenate([burst(180, 250, 4500), gap, burst(220, 250, 4500, seed=1)])


def join(*sounds: np.ndarray) -> np.ndarray:
    """The sounds one after the other, over the noise of a quiet room."""
    sound = np.concatenate(sounds)
    return sound + noise(len(sound) / SAMPLE_RATE + 0.01)[: len(sound)]


def to_hearing_rate(pcm: np.ndarray) -> np.ndarray:
    """24 kHz -> 16 kHz in one go."""
    from actors.voice.resample import Resampler

    return Resampler(SAMPLE_RATE).push(pcm)
