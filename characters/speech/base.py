"""What all speech engines share: their interface, their result and resampling."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Protocol

import numpy as np

from characters.chunk import SAMPLE_RATE


@dataclass(frozen=True, slots=True)
class Phoneme:
    """One phoneme. `symbol` is in the engine's own alphabet ("" = pause); start and end are seconds."""

    symbol: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Speech:
    """One piece of speech.

    Attributes:
        pcm: float32 [n], mono at 24 kHz.
        phonemes: in order of time, without gaps, over all of `pcm`; empty if the engine gives no times.
    """

    pcm: np.ndarray
    phonemes: list[Phoneme] = field(default_factory=list)


class Synthesiser(Protocol):
    """A text-to-speech voice."""

    def speak(self, text: str, *, speed: float = 1.0, pitch: float = 0.0) -> Iterator[Speech]:
        """Yields one Speech for each sentence, as soon as it is ready.

        Args:
            text: English.
            speed: 1.0 is the voice's own pace, 2.0 twice as fast; 0.5 to 2.
            pitch: semitones up (negative: down), -12 to 12.

        Raises:
            UserError: the engine is missing or failed.
        """
        ...


def resample(pcm: np.ndarray, rate_in: float, rate_out: float = SAMPLE_RATE) -> np.ndarray:
    """Resamples a whole signal, band-limited, through its spectrum.

    Args:
        pcm: float32 [n] at `rate_in`.

    Returns:
        float32 [round(n * rate_out / rate_in)]; sample 0 stays at time 0.
    """
    if rate_in == rate_out or len(pcm) == 0:
        return np.asarray(pcm, np.float32)
    wanted = round(len(pcm) * rate_out / rate_in)
    # The transform is periodic: padding keeps the end from ringing into the start. The sizes have the ratio of the
    # rates, to within 2e-4, so that the end of a long signal stays in place.
    ratio = Fraction(rate_out / rate_in).limit_denominator(4000)
    blocks = (len(pcm) + 256) // ratio.denominator + 1
    size_in, size_out = blocks * ratio.denominator, blocks * ratio.numerator
    spectrum = np.fft.rfft(np.asarray(pcm, np.float32), size_in)
    out = np.fft.irfft(spectrum[: size_out // 2 + 1], size_out) * (size_out / size_in)
    return out[:wanted].astype(np.float32)
