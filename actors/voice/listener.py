"""The user's stream of sound -> onsets, pauses and the sound of the turn."""

from __future__ import annotations

from collections import deque
from enum import Enum, auto

import numpy as np

from actors.voice.config import VoiceConfig
from actors.voice.protocols import HEARING_RATE, WINDOW, WINDOW_MS, VoiceActivity
from actors.voice.resample import Resampler, to_mono
from actors.voice.vad import VoiceGate

_FULL_SECONDS = 26.0  # sound of a turn that can still be transcribed in one go
_LONGEST_PUSH = HEARING_RATE * 30


class Heard(Enum):
    """What a window of sound means for the turn."""

    ONSET = auto()  # a turn begins
    PAUSE = auto()  # the turn may be over
    AGAIN = auto()  # the turn was not over: the voice goes on
    FULL = auto()  # the turn's sound must be taken (`take`) before it gets too long to be transcribed
    TOO_LONG = auto()  # the turn has lasted as long as a turn may
    WINDOW = auto()  # 32 ms have passed in an open turn


class Listener:
    """Works in windows of 32 ms. Times are samples of its own 16 kHz clock, which starts at 0.

    Attributes:
        open: whether a turn is going on.
        onset: first sample of the voice in the open turn.
        voice_end: sample after the last voiced window.
        onset_ms: unbroken voice that makes an onset; the owner sets it according to what the character does.
        samples: that `judge` has seen.
        taken: samples that `push` has taken.
    """

    def __init__(self, config: VoiceConfig, activity: VoiceActivity) -> None:
        self._config = config
        self._activity = activity
        self._gate = VoiceGate(config.vad)
        self._resampler: Resampler | None = None
        self._rest = np.zeros(0, np.float32)
        longest = max(config.vad.onset_ms, config.barge_in.min_interruption_duration_ms)
        self._preroll: deque[np.ndarray] = deque(maxlen=-(-(config.vad.preroll_ms + longest) // WINDOW_MS) + 1)
        self._sound: list[np.ndarray] = []
        self._paused = False
        self.open = False
        self.onset = 0
        self.voice_end = 0
        self.onset_ms = config.vad.onset_ms
        self.samples = 0
        self.taken = 0

    def push(self, pcm: np.ndarray, rate: int) -> list[np.ndarray]:
        """Takes int16 or float [n] or [n, channels] at `rate`; returns the windows that this completes, for `judge`.

        Raises:
            UserError: sound of another type, or a rate that cannot be heard.
        """
        if self._resampler is None or self._resampler.rate != rate:
            self._resampler = Resampler(rate)
        sound = self._resampler.push(to_mono(pcm))[-_LONGEST_PUSH:]
        self.taken += len(sound)
        sound = np.concatenate([self._rest, sound])
        count = len(sound) // WINDOW
        self._rest = sound[count * WINDOW :]
        return list(sound[: count * WINDOW].reshape(count, WINDOW))

    def judge(self, window: np.ndarray) -> list[Heard]:
        """Takes one window of `push` and returns what it means, in order; WINDOW comes last while a turn is open."""
        gate = self._gate
        gate.push(self._activity.probability(window))
        self.samples += WINDOW
        if gate.voiced:
            self.voice_end = self.samples
        if not self.open:
            self._preroll.append(window)
            if not gate.onset(self.onset_ms):
                return []
            self.open, self._paused = True, False
            run = gate.run
            self.onset = self.samples - run * WINDOW
            gate.reset()
            gate.voiced_windows = gate.run = run
            self._sound = list(self._preroll)
            self._preroll.clear()
            return [Heard.ONSET, Heard.WINDOW]
        self._sound.append(window)
        heard = []
        if gate.voiced and self._paused:
            self._paused = False
            heard.append(Heard.AGAIN)
        elif not self._paused and gate.silent_ms() >= self._config.turn.pause_ms:
            self._paused = True
            heard.append(Heard.PAUSE)
        if len(self._sound) * WINDOW >= _FULL_SECONDS * HEARING_RATE:
            heard.append(Heard.FULL)
        if self.samples - self.onset >= self._config.turn.longest_s * HEARING_RATE:
            heard.append(Heard.TOO_LONG)
        return [*heard, Heard.WINDOW]

    def voiced_ms(self) -> int:
        """Milliseconds of voice in the open turn, without its pauses."""
        return self._gate.voiced_ms()

    def silent_ms(self) -> int:
        """Milliseconds since the last voiced window."""
        return self._gate.silent_ms()

    def sound(self) -> np.ndarray:
        """The open turn so far, from a little before its onset: float32 [n] at 16 kHz."""
        return np.concatenate(self._sound) if self._sound else np.zeros(0, np.float32)

    def take(self) -> np.ndarray:
        """The same, and the next `sound` begins after it; the turn stays open."""
        sound, self._sound = self.sound(), []
        return sound

    def close_turn(self) -> None:
        """The turn is over; the next onset opens another."""
        self._preroll.extend(self._sound[-(self._preroll.maxlen or 1) :])
        self._sound = []
        self.open = self._paused = False
        self._gate.reset()
