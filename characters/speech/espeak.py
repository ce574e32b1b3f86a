"""espeak-ng: many voices made by rules. It is a separate program (GPL) behind `espeak_worker.py` and pipes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from characters.errors import UserError
from characters.speech.base import Phoneme, Speech, resample
from characters.speech.clauses import sentences

WORDS_PER_MINUTE = 165
# espeak-ng's pitch lies in 0..99; 50 is the voice's own, and 50 steps are an octave.
STEPS_PER_SEMITONE = 50 / 12

# How far the labels lie behind the sound. Measured as for hibari, it is below the resolution of 10 ms.
LABEL_DELAY = 0.0

# Not a path: espeak-ng would read a voice from any file, and a name may come from a stranger's.
_NAME = re.compile(r"[A-Za-z0-9]+([-_+][A-Za-z0-9]+)*")
_SECONDS = 60.0  # for a sentence
_END_SECONDS = 5.0
_WORKER = Path(__file__).with_name("espeak_worker.py")


class EspeakVoice:
    """One espeak-ng voice, such as "en-us" or, British with a variant, "en+f2".

    Raises:
        UserError: espeak-ng is not installed, or has no such voice (when first speaking), or took a minute.
    """

    def __init__(self, voice: str = "en-us") -> None:
        if not _NAME.fullmatch(voice):
            raise UserError(f"{voice!r} is no name of an espeak voice; `espeak-ng --voices` lists those installed.")
        self.voice = voice
        if shutil.which("espeak-ng") is None:
            raise UserError("The espeak voices need the program espeak-ng: apt install espeak-ng.")
        self._worker: subprocess.Popen[bytes] | None = None

    def close(self) -> None:
        """Ends the worker process; the next `speak` starts another."""
        if self._worker is not None:
            try:
                self._worker.communicate(timeout=_END_SECONDS)  # closes its stdin, which ends it
            except subprocess.TimeoutExpired:
                self._worker.kill()
                self._worker.communicate()
            self._worker = None

    def __del__(self) -> None:
        if getattr(self, "_worker", None) is not None and not sys.is_finalizing():
            self.close()

    def speak(self, text: str, *, speed: float = 1.0, pitch: float = 0.0) -> Iterator[Speech]:
        """See `Synthesiser.speak`."""
        for sentence in sentences(text):
            reply, pcm = self._request(
                {
                    "text": sentence,
                    "voice": self.voice,
                    "rate": round(WORDS_PER_MINUTE * speed),
                    "pitch": int(np.clip(round(50 + pitch * STEPS_PER_SEMITONE), 0, 99)),
                }
            )
            rate = reply["sample_rate"]
            yield Speech(resample(pcm, rate), _phonemes(reply["phonemes"], len(pcm), rate))

    def _request(self, request: dict) -> tuple[dict, np.ndarray]:
        """The worker's reply, and float32 [n] samples at the rate that the reply names."""
        if self._worker is None:
            # -I: the worker sees neither our folders nor our environment, only the standard library.
            command = [sys.executable, "-I", str(_WORKER)]
            self._worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._worker.stdin is not None and self._worker.stdout is not None
        late = threading.Timer(_SECONDS, self._worker.kill)
        late.start()
        try:
            self._worker.stdin.write(json.dumps(request).encode() + b"\n")
            self._worker.stdin.flush()
            line = self._worker.stdout.readline()
            reply = json.loads(line) if line else {"samples": 1}
            sound = self._worker.stdout.read(2 * reply["samples"])
        except (BrokenPipeError, ValueError):  # it ended, perhaps in the middle of a line
            reply, sound = {"samples": 1}, b""
        finally:
            late.cancel()
        if len(sound) < 2 * reply["samples"]:
            self.close()
            raise UserError(
                f"The espeak-ng worker ended early, or was ended after {_SECONDS:g} s; its message is above. It needs "
                "the library libespeak-ng: apt install espeak-ng."
            )
        pcm = np.frombuffer(sound, "<i2")
        if "error" in reply:
            raise UserError(f"espeak-ng: {reply['error']}; `espeak-ng --voices` lists those installed.")
        return reply, pcm.astype(np.float32) / 32768


def _phonemes(events: list[list], samples: int, rate: int) -> list[Phoneme]:
    """[[symbol, start sample], ...] -> phonemes without gaps, over all of the sound."""
    seconds = samples / rate
    starts = [float(np.clip(start / rate - LABEL_DELAY, 0, seconds)) for _, start in events]
    symbols = [symbol for symbol, _ in events]
    if not starts or starts[0] > 0:
        starts.insert(0, 0.0)
        symbols.insert(0, "")
    ends = [*starts[1:], seconds]
    return [Phoneme(s, a, b) for s, a, b in zip(symbols, starts, ends, strict=True)]
