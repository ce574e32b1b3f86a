"""What the voice bridge asks of its parts. Each has an offline default here and may be replaced by config.

Sound for the ears is float32 mono at 16 kHz, full scale 1.0 (`HEARING_RATE`); sound for the mouth comes from
`characters.speech.Synthesiser` at 24 kHz.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

HEARING_RATE = 16_000
WINDOW = 512  # samples that a VoiceActivity judges at a time: 32 ms
WINDOW_MS = 1000 * WINDOW // HEARING_RATE


class VoiceActivity(Protocol):
    """Tells voice from other sound. Cheap enough (well under 1 ms a window) to be called in an event loop."""

    def probability(self, window: np.ndarray) -> float:
        """How sure it is, 0 to 1, that float32 [512] at 16 kHz holds a voice. Windows follow each other in time."""
        ...

    def reset(self) -> None:
        """Forgets the past, as if the next window were the first."""
        ...


class EndOfTurn(Protocol):
    """Judges from the sound whether the speaker has finished."""

    def probability(self, pcm: np.ndarray) -> float:
        """0 (unfinished) to 1 (finished) for float32 [n] at 16 kHz, which ends in a short pause. Takes ~0.1 s."""
        ...


@dataclass(frozen=True, slots=True)
class Transcript:
    """What was understood.

    Attributes:
        text: "" if there was no speech in it.
        confidence: mean log probability of its tokens, at most 0; above -1 is usual for clear words. 0 if the engine
            does not tell.
    """

    text: str
    confidence: float = 0.0


class SpeechToText(Protocol):
    """Understands a stretch of speech. Called in a worker thread, one call at a time."""

    def transcribe(self, pcm: np.ndarray) -> Transcript:
        """float32 [n] at 16 kHz, up to 30 s, to text.

        Raises:
            UserError: the engine or its server failed.
        """
        ...


@dataclass(frozen=True, slots=True)
class ToolCall:
    """The model asks for a tool: `arguments` is the JSON text that it wrote, unchecked."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """One entry of the conversation. A "tool" message answers the call `call_id` of the assistant's before it."""

    role: Literal["system", "user", "assistant", "tool"]
    text: str
    calls: tuple[ToolCall, ...] = ()
    call_id: str = ""


@dataclass(frozen=True)
class Tool:
    """Something the model may call.

    Attributes:
        name: letters, digits and underscores.
        description: for the model.
        parameters: JSON schema of its arguments, an object.
        run: takes the checked-for-JSON arguments, returns the text that the model is told.
    """

    name: str
    description: str
    run: Callable[[dict[str, Any]], Awaitable[str]]
    parameters: dict[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})


class LanguageModel(Protocol):
    """Thinks up replies."""

    def stream(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> AsyncIterator[str | ToolCall]:
        """Yields pieces of text as they come, and whole tool calls after them. Closing the iterator cancels it.

        Args:
            messages: the conversation, the newest last; the first is the system message.
            tools: that may be called.

        Raises:
            UserError: no answer: server gone, refused, too slow.
        """
        ...
