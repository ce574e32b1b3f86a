"""Clauses -> sound with the times of its words, by the engine that the configuration names."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from actors.voice.config import TtsConfig
from actors.voice.events import TimedWord
from characters.character import Voice
from characters.chunk import SAMPLE_RATE
from characters.errors import UserError
from characters.speech import Phoneme, Speech, Synthesiser, open_voice
from characters.speech.base import resample

_QUIET = 0.01  # of full scale
_LEAD = 0.03  # seconds kept before the first sound, where engines put up to 0.3 s of silence
_TAIL = 0.05
_CLAUSE_PAUSE = 0.14  # seconds of silence after a clause that does not end a sentence
_SENTENCE_PAUSE = 0.3


@dataclass(frozen=True, slots=True)
class Clause:
    """A spoken clause.

    Attributes:
        text: what is said.
        pcm: float32 [n], mono at 24 kHz, with the pause after it.
        words: in order; samples counted from the start of `pcm`.
    """

    text: str
    pcm: np.ndarray
    words: tuple[TimedWord, ...]


class Speaker:
    """A voice with a character's pace and pitch. Blocking: to be called in a worker thread."""

    def __init__(self, voice: Synthesiser, speed: float = 1.0, pitch: float = 0.0) -> None:
        """`speed` and `pitch` as in `Synthesiser.speak`."""
        self._voice, self._speed, self._pitch = voice, speed, pitch

    def say(self, text: str) -> Clause:
        """Speaks one clause.

        Raises:
            UserError: the engine failed.
        """
        pieces = list(self._voice.speak(text, speed=self._speed, pitch=self._pitch))
        pause = _SENTENCE_PAUSE if text.rstrip("\"”’')]")[-1:] in tuple(".!?…") else _CLAUSE_PAUSE
        sounds: list[np.ndarray] = []
        phonemes: list[Phoneme] = []
        length = 0
        for piece in pieces:
            trimmed, shift = _trim(piece.pcm)
            if not len(trimmed):
                continue
            sounds += [trimmed, np.zeros(int(pause * SAMPLE_RATE), np.float32)]
            at = length / SAMPLE_RATE - shift
            phonemes += [Phoneme(p.symbol, p.start + at, p.end + at) for p in piece.phonemes]
            length += len(trimmed) + int(pause * SAMPLE_RATE)
        if not sounds:
            return Clause(text, np.zeros(0, np.float32), ())
        pcm = np.concatenate(sounds)
        voiced = (len(pcm) - int(pause * SAMPLE_RATE)) / SAMPLE_RATE
        return Clause(text, pcm, word_times(text, phonemes, voiced))


def word_times(text: str, phonemes: list[Phoneme], seconds: float) -> tuple[TimedWord, ...]:
    """When each word sounds.

    Engines give times of phonemes, not of words. So a word gets the share of the phonemes that it has of the letters.
    Within one clause this is right to a phoneme or two, which is precise enough for "what was heard".

    Args:
        text: the clause.
        phonemes: with their times in seconds; if there are none, the letters are spread over the time evenly.
        seconds: length of the voice.
    """
    words = [w for w in text.split() if any(c.isalnum() for c in w)]
    sounding = [p for p in phonemes if p.symbol and p.end > 0]
    # Digits are spoken as words: one digit sounds as long as about four letters.
    weights = [sum(4 if c.isdigit() else 1 for c in w if c.isalnum()) for w in words]
    shares = np.cumsum([0, *weights]) / max(1, sum(weights))
    if sounding:
        borders = [max(0.0, p.start) for p in sounding] + [min(seconds, sounding[-1].end)]
        times = np.interp(shares, np.linspace(0, 1, len(borders)), borders)
    else:
        times = shares * seconds
    samples = np.round(times * SAMPLE_RATE).astype(int).tolist()
    return tuple(TimedWord(w, a, b) for w, a, b in zip(words, samples[:-1], samples[1:], strict=True))


def _trim(pcm: np.ndarray) -> tuple[np.ndarray, float]:
    """The sound without the silence around it, and the seconds that were cut from its start."""
    loud = np.flatnonzero(np.abs(pcm) > _QUIET)
    if not len(loud):
        return pcm[:0], 0.0
    start = max(0, int(loud[0] - _LEAD * SAMPLE_RATE))
    end = min(len(pcm), int(loud[-1] + _TAIL * SAMPLE_RATE))
    return np.asarray(pcm[start:end], np.float32), start / SAMPLE_RATE


class PiperVoice:
    """A Piper voice, spoken by the separate program `piper`.

    Raises:
        UserError: the program or the voice does not exist.
    """

    def __init__(self, model: str) -> None:
        """`model`: path of the voice's .onnx file; its .onnx.json lies beside it."""
        self._program = shutil.which("piper")
        if self._program is None:
            raise UserError("the Piper voices need the program piper on the PATH")
        self._model = Path(model).expanduser()
        description = self._model.with_name(self._model.name + ".json")
        if not self._model.is_file() or not description.is_file():
            raise UserError(f"{self._model} and {description.name} beside it must exist to be a Piper voice")
        import json

        try:
            self._rate = int(json.loads(description.read_text("utf8"))["audio"]["sample_rate"])
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{description} names no audio.sample_rate") from error

    def speak(self, text: str, *, speed: float = 1.0, pitch: float = 0.0) -> Iterator[Speech]:
        """See `Synthesiser.speak`. Resampling makes the pitch; there are no phoneme times."""
        factor = 2 ** (pitch / 12)
        command = [str(self._program), "--model", str(self._model), "--output-raw"]
        command += ["--length-scale", f"{factor / speed:.4f}"]
        try:
            result = subprocess.run(command, input=text.encode(), capture_output=True, check=False, timeout=60)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UserError(f"piper failed: {error}") from error
        if result.returncode != 0:
            raise UserError(f"piper failed: {result.stderr.decode(errors='replace').strip()[-300:] or 'no message'}")
        pcm = np.frombuffer(result.stdout[: len(result.stdout) // 2 * 2], "<i2").astype(np.float32) / 32768
        yield Speech(resample(pcm, self._rate * factor))


def open_speaker(config: TtsConfig, voice: Voice) -> Speaker:
    """The voice that the configuration names, at the character's pace and pitch.

    Raises:
        UserError: no such engine, or it is not installed.
    """
    if config.engine == "openai":
        from actors.voice.remote import RemoteVoice

        return Speaker(RemoteVoice(config), voice.speed, voice.pitch)
    name = voice.engine if config.engine == "character" else config.engine
    if name.startswith("piper:"):
        return Speaker(PiperVoice(name.removeprefix("piper:")), voice.speed, voice.pitch)
    return Speaker(open_voice(name), voice.speed, voice.pitch)
