"""A stream of sound of any shape and any rate -> mono float32 at another rate."""

from __future__ import annotations

from math import gcd

import numpy as np

from actors.voice.protocols import HEARING_RATE
from characters.errors import UserError

_MOST_PHASES = 480
_TAPS_PER_PHASE = 24  # at the lower of the two rates; group delay about 0.75 ms at 16 kHz


def to_mono(pcm: np.ndarray) -> np.ndarray:
    """int16 or float [n] or [n, channels] -> float32 [n], full scale 1.0; not-a-number becomes silence.

    Raises:
        UserError: another dtype or shape.
    """
    if pcm.ndim not in (1, 2) or not (pcm.dtype == np.int16 or np.issubdtype(pcm.dtype, np.floating)):
        raise UserError(f"sound must be int16 or float [n] or [n, channels], not {pcm.dtype} {list(pcm.shape)}")
    scale = 1 / 32768 if pcm.dtype == np.int16 else 1.0
    mono = pcm.astype(np.float32) * np.float32(scale)
    if mono.ndim == 2:
        mono = mono.mean(axis=1, dtype=np.float32) if mono.shape[1] else np.zeros(len(mono), np.float32)
    return np.clip(np.nan_to_num(mono, nan=0.0, posinf=1.0, neginf=-1.0), -1.0, 1.0)


class Resampler:
    """Streaming rational resampling by a windowed-sinc polyphase filter.

    Raises:
        UserError: the rate is outside 8 to 192 kHz, or its ratio to the other is not a small fraction.
    """

    def __init__(self, rate: int, to: int = HEARING_RATE) -> None:
        """`rate`, `to`: of the input and of the output, in Hz."""
        if not 8_000 <= rate <= 192_000 or to // gcd(rate, to) > _MOST_PHASES:
            raise UserError(f"sound at {rate} Hz cannot be heard; use 16000, 24000, 44100 or 48000")
        self.rate, self.to = rate, to
        divisor = gcd(rate, to)
        self._up, self._down = to // divisor, rate // divisor
        taps = int(np.ceil(_TAPS_PER_PHASE * max(1.0, self._down / self._up)))
        # The prototype has the rate `up * rate`; its phase p makes the outputs that lie p/up after an input sample.
        length = taps * self._up
        time = (np.arange(length) - (length - 1) / 2) / max(self._up, self._down)
        prototype = np.sinc(0.95 * time) * np.kaiser(length, 7.0)
        prototype *= self._up / prototype.sum()
        self._bank = prototype.reshape(taps, self._up).T[:, ::-1].astype(np.float32).copy()  # [up, taps], oldest first
        self._taps = taps
        self._past = np.zeros(taps - 1, np.float32)
        self._next = 0  # position of the next output in steps of 1 / (up * rate), from the first sample not yet used

    def push(self, pcm: np.ndarray) -> np.ndarray:
        """float32 [n] at `rate` -> float32 [about n * to / rate]."""
        if self.rate == self.to:
            return np.asarray(pcm, np.float32)
        signal = np.concatenate([self._past, pcm])
        count = max(0, (len(pcm) * self._up - self._next + self._down - 1) // self._down)
        position = self._next + self._down * np.arange(count)
        self._next += count * self._down - len(pcm) * self._up
        self._past = signal[len(signal) - (self._taps - 1) :]
        if count == 0:
            return np.zeros(0, np.float32)
        rows = np.lib.stride_tricks.sliding_window_view(signal, self._taps)[position // self._up]
        return np.einsum("kt,kt->k", rows, self._bank[position % self._up])
