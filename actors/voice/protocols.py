"""What the voice bridge asks of its parts. Each has an offline default here, which the configuration may replace.

The user's sound is float32 mono at 16 kHz (`HEARING_RATE`), full scale 1.0. The character's sound comes from
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
    """Tells voice from other sound. It must be cheap enough for an event loop: well under 1 ms a window."""

    def probability(self, window: np.ndarray) -> float:
        """Probability that float32 [512] at 16 kHz holds a voice. The window follows the one of the call before."""
        ...

    def reset(self) -> None:
        """Forgets the past: the next window is the first of a new stream."""
        ...


class EndOfTurn(Protocol):
    """Judges by the sound whether the speaker has finished."""

    def probability(self, pcm: np.ndarray) -> float:
        """Probability that float32 [n] at 16 kHz, which ends in a short pause, is finished. Takes about 0.1 s."""
        ...


@dataclass(frozen=True, slots=True)
class Transcript:
    """What was understood.

    Attributes:
        text: "" if the sound held no speech.
        confidence: mean log probability of its tokens, at most 0; above -1 is usual for clear words. 0 if the engine
            does not report it.
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
    """The model asks for a tool. `arguments` is the JSON text that it wrote, unchecked."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """One entry of the conversation. A "tool" message answers call `call_id` of the assistant message before it."""

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
        run: takes the arguments, parsed from JSON but not checked against the schema; returns the text for the model.
    """

    name: str
    description: str
    run: Callable[[dict[str, Any]], Awaitable[str]]
    parameters: dict[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})


class LanguageModel(Protocol):
    """Writes replies."""

    async def warm(self) -> None:
        """Whatever makes the first reply as quick as the others. Fails quietly: a reply will tell what is wrong."""
        ...

    def stream(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> AsyncIterator[str | ToolCall]:
        """Yields pieces of text as they come, then whole tool calls. Closing the iterator cancels the reply.

        Args:
            messages: the conversation, the newest last; the first is the system message.
            tools: that may be called.

        Raises:
            UserError: no answer came, because the server is away, refuses or is too slow.
        """
        ...
