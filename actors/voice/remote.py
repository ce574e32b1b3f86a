"""Speech to text and text to speech behind OpenAI-compatible HTTP interfaces. Blocking: called in worker threads."""

from __future__ import annotations

import io
import wave
from collections.abc import Iterator
from typing import Any

import numpy as np

from actors.voice.config import SttConfig, TtsConfig
from actors.voice.history import LONGEST_TEXT
from actors.voice.llm import api_key
from actors.voice.protocols import HEARING_RATE, Transcript
from characters.chunk import SAMPLE_RATE
from characters.errors import UserError
from characters.speech import Speech
from characters.speech.base import resample

_PIECE = SAMPLE_RATE // 2 * 2  # bytes read at a time: half a second of int16
_LONGEST_BYTES = 2 * SAMPLE_RATE * 120  # no clause takes two minutes


def _client(key_variable: str, base_url: str, timeout: float) -> Any:
    try:
        import openai
    except ImportError as error:
        raise UserError("engine openai needs the package openai: pip install -e '.[voice]'") from error
    key = api_key(key_variable, base_url)
    return openai.OpenAI(api_key=key, base_url=base_url or None, timeout=timeout, max_retries=0)


class RemoteStt:
    """`SpeechToText` by POST /audio/transcriptions. Raises UserError if there is no key."""

    def __init__(self, config: SttConfig) -> None:
        self._client = _client(config.key_variable, config.base_url, config.timeout_s)
        self._model = config.model if config.model != "auto" else "whisper-1"

    def transcribe(self, pcm: np.ndarray) -> Transcript:
        """See `SpeechToText.transcribe`."""
        buffer = io.BytesIO()
        with wave.open(buffer, "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(HEARING_RATE)
            file.writeframes((np.clip(pcm, -1, 1) * 32767).astype("<i2").tobytes())
        try:
            answer = self._client.audio.transcriptions.create(
                model=self._model, file=("turn.wav", buffer.getvalue(), "audio/wav"), language="en"
            )
            return Transcript(str(answer.text)[:LONGEST_TEXT].strip())
        except Exception as error:  # the client does not catch errors of its transport and its parser
            raise UserError(f"the speech-to-text server failed: {type(error).__name__}: {error}") from error


class RemoteVoice:
    """`Synthesiser` by POST /audio/speech; the answer is raw int16 at 24 kHz. Raises UserError if there is no key."""

    def __init__(self, config: TtsConfig) -> None:
        self._client = _client(config.key_variable, config.base_url, config.timeout_s)
        self._model = config.model or "tts-1"
        self._voice = config.voice

    def speak(self, text: str, *, speed: float = 1.0, pitch: float = 0.0) -> Iterator[Speech]:
        """See `Synthesiser.speak`. Yields one Speech, so that word times fit, without phoneme times."""
        factor = 2 ** (pitch / 12)
        try:
            with self._client.audio.speech.with_streaming_response.create(
                model=self._model, voice=self._voice, input=text, response_format="pcm", speed=speed / factor
            ) as answer:
                sound = bytearray()
                for piece in answer.iter_bytes(_PIECE):
                    sound += piece
                    if len(sound) > _LONGEST_BYTES:
                        raise UserError("the text-to-speech server sent sound without end")
        except UserError:
            raise
        except Exception as error:  # as above
            raise UserError(f"the text-to-speech server failed: {type(error).__name__}: {error}") from error
        pcm = np.frombuffer(bytes(sound[: len(sound) // 2 * 2]), "<i2").astype(np.float32) / 32768
        yield Speech(resample(pcm, SAMPLE_RATE * factor))
