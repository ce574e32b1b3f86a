"""What the voice bridge tells the rest of the system, and the trace of one turn."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import numpy as np


@dataclass(frozen=True, slots=True)
class TimedWord:
    """A word and the samples (24 kHz, counted from the start of its response) in which it sounds."""

    text: str
    start: int
    end: int


@dataclass(slots=True)
class TurnTrace:
    """Timestamps of one turn, in seconds of the bridge's clock; None for what has not happened (or never does).

    Attributes:
        turn: counts from 1 within the session; 0 is the greeting.
        speech_start, speech_end: of the user's voice, as it came in. A typed turn has the same time in both.
        stt_done: transcript ready.
        decided: the user's turn was judged over.
        first_token: first text of the reply.
        first_pcm: first sound of the reply, handed on.
        first_heard: first sound of the reply, played.
    """

    turn: int
    speech_start: float | None = None
    speech_end: float | None = None
    stt_done: float | None = None
    decided: float | None = None
    first_token: float | None = None
    first_pcm: float | None = None
    first_heard: float | None = None

    def stamps(self) -> dict[str, float]:
        """What has happened, by name, in the order of the fields."""
        times = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "turn"}
        return {name: time for name, time in times.items() if time is not None}


@dataclass(frozen=True, slots=True)
class UserStartedSpeaking:
    """The user's voice set in. `time`: when this was decided; `onset`: when the voice began (bridge's clock)."""

    time: float
    onset: float


@dataclass(frozen=True, slots=True)
class UserText:
    """Transcript of the user's turn so far, for captions; the final one comes as `UserTurn`."""

    text: str


@dataclass(frozen=True, slots=True)
class UserTurn:
    """The user has finished. `start` and `end`: of the voice on the bridge's clock; `typed`: it came by chat."""

    turn: int
    text: str
    start: float
    end: float
    typed: bool = False


@dataclass(frozen=True, slots=True)
class Backchannel:
    """A sound of the user that was no turn: encouragement ("mm-hm", its text) or a noise (text "")."""

    text: str


@dataclass(frozen=True, slots=True)
class ReplyStarted:
    """A reply (or, after a `Cancelled` that came to nothing, the rest of one) begins under a new response."""

    response_id: int
    turn: int
    resumes: int | None = None


@dataclass(frozen=True, slots=True)
class ReplyAudio:
    """A stretch of the reply's voice: usually one clause.

    Attributes:
        response_id: the reply's id.
        pcm: float32 [n], mono at 24 kHz; follows the response's previous stretch without a gap.
        text: what is said in it.
        words: when each word sounds.
        start: the response's samples before this stretch.
    """

    response_id: int
    pcm: np.ndarray
    text: str
    words: tuple[TimedWord, ...]
    start: int


@dataclass(frozen=True, slots=True)
class ReplyText:
    """Transcript of the reply as far as it has been heard; whole texts, each replacing the one before."""

    response_id: int
    text: str
    final: bool


@dataclass(frozen=True, slots=True)
class ReplyMade:
    """All of the reply's sound has been handed on: `samples` at 24 kHz in all under this response."""

    response_id: int
    samples: int


@dataclass(frozen=True, slots=True)
class ReplyHeard:
    """The reply has been heard to its end."""

    response_id: int
    text: str


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Stop this response at the next chunk border and drop what is left of it.

    `time` is when this was decided. What follows is `Interrupted`, or `ReplyStarted` that resumes it.
    """

    response_id: int
    time: float


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The reply is over before its end; `heard_text` is what the user heard of it, and all that is remembered."""

    response_id: int
    heard_text: str


@dataclass(frozen=True, slots=True)
class VoiceError:
    """A part failed; the conversation goes on. `message` is one line for the log and the user."""

    stage: str
    message: str


@dataclass(frozen=True, slots=True)
class TurnDone:
    """The trace of a turn whose first sound has been heard."""

    trace: TurnTrace = field(default_factory=lambda: TurnTrace(0))


Event = (
    UserStartedSpeaking
    | UserText
    | UserTurn
    | Backchannel
    | ReplyStarted
    | ReplyAudio
    | ReplyText
    | ReplyMade
    | ReplyHeard
    | Cancelled
    | Interrupted
    | VoiceError
    | TurnDone
)
