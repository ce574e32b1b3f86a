"""flite: small voices recorded from people, at 16 kHz (kal: 8 kHz). A separate program, under a BSD-like licence."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import wave
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from characters.errors import UserError
from characters.speech.base import Phoneme, Speech, resample
from characters.speech.clauses import sentences

# How far the labels lie behind the sound. Measured as for hibari, it is below the resolution of 10 ms.
LABEL_DELAY = 0.0

# flite takes a voice's name for a URL or a file if it knows no such voice, and a name may come from a stranger's file.
VOICES = ("awb", "awb_time", "kal", "kal16", "rms", "slt")
_SECONDS = 60.0  # for a sentence


class FliteVoice:
    """One flite voice: slt (female), rms, awb, kal, kal16 (male).

    Raises:
        UserError: no such voice, or flite is not installed; when speaking, flite failed or took a minute.
    """

    def __init__(self, voice: str = "slt") -> None:
        if voice not in VOICES:
            raise UserError(f"There is no flite voice {voice!r}; there are {', '.join(VOICES)}.")
        self.voice = voice
        if shutil.which("flite") is None:
            raise UserError("The flite voices need the program flite: apt install flite.")

    def speak(self, text: str, *, speed: float = 1.0, pitch: float = 0.0) -> Iterator[Speech]:
        """See `Synthesiser.speak`. Resampling makes the pitch, so the formants move too."""
        factor = 2 ** (pitch / 12)
        for sentence in sentences(text):
            pcm, rate, ends = self._run(sentence, stretch=factor / speed)
            pcm = resample(pcm, rate * factor)
            seconds = len(pcm) / 24_000
            times = [float(np.clip(end / factor - LABEL_DELAY, 0, seconds)) for _, end in ends]
            if times:
                times[-1] = seconds
            symbols = ["" if symbol == "pau" else symbol for symbol, _ in ends]
            starts = [0.0, *times[:-1]]
            yield Speech(pcm, [Phoneme(s, a, b) for s, a, b in zip(symbols, starts, times, strict=True)])

    def _run(self, text: str, stretch: float) -> tuple[np.ndarray, int, list[tuple[str, float]]]:
        """float32 [n] samples, their rate, and (symbol, end in seconds) of every segment."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "speech.wav"
            command = ["flite", "-voice", self.voice, "--setf", f"duration_stretch={stretch:.4f}"]
            command += ["-psdur", "-o", str(path), "-t", text]
            try:
                result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS)
            except subprocess.TimeoutExpired as error:
                raise UserError(f"flite did not speak a sentence within {_SECONDS:g} s") from error
            if result.returncode != 0 or not path.exists():
                raise UserError(f"flite failed on voice {self.voice!r}: {result.stderr.strip() or 'no message'}")
            with wave.open(str(path)) as file:
                rate = file.getframerate()
                pcm = np.frombuffer(file.readframes(file.getnframes()), "<i2")
        pairs = (item.rsplit(":", 1) for item in result.stdout.split() if ":" in item)
        return pcm.astype(np.float32) / 32768, rate, [(symbol, float(end)) for symbol, end in pairs]
