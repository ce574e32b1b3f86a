"""What the voice bridge tells the rest of the system, and the ledger of one turn."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import numpy as np


@dataclass(frozen=True, slots=True)
class TimedWord:
    """A word and the samples (24 kHz, counted from the start of its generation) in which it sounds."""

    text: str
    start: int
    end: int


@dataclass(slots=True)
class TurnLedger:
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
    """A reply (or, after a `Retired` that came to nothing, the rest of one) begins under a new generation."""

    generation: int
    turn: int
    resumes: int | None = None


@dataclass(frozen=True, slots=True)
class ReplyAudio:
    """A stretch of the reply's voice: usually one clause.

    Attributes:
        generation: the reply's id.
        pcm: float32 [n], mono at 24 kHz; follows the generation's previous stretch without a gap.
        text: what is said in it.
        words: when each word sounds.
        start: the generation's samples before this stretch.
    """

    generation: int
    pcm: np.ndarray
    text: str
    words: tuple[TimedWord, ...]
    start: int


@dataclass(frozen=True, slots=True)
class ReplyText:
    """Transcript of the reply as far as it has been heard; whole texts, each replacing the one before."""

    generation: int
    text: str
    final: bool


@dataclass(frozen=True, slots=True)
class ReplyMade:
    """All of the reply's sound has been handed on: `samples` at 24 kHz in all under this generation."""

    generation: int
    samples: int


@dataclass(frozen=True, slots=True)
class ReplyHeard:
    """The reply has been heard to its end."""

    generation: int
    text: str


@dataclass(frozen=True, slots=True)
class Retired:
    """Stop this generation at the next chunk border and drop what is left of it.

    `time` is when this was decided. What follows is `Interrupted`, or `ReplyStarted` that resumes it.
    """

    generation: int
    time: float


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The reply is over before its end; `heard_text` is what the user heard of it, and all that is remembered."""

    generation: int
    heard_text: str


@dataclass(frozen=True, slots=True)
class Problem:
    """A part failed; the conversation goes on. `message` is one line for the log and the user."""

    stage: str
    message: str


@dataclass(frozen=True, slots=True)
class TurnDone:
    """The ledger of a turn whose first sound has been heard."""

    ledger: TurnLedger = field(default_factory=lambda: TurnLedger(0))


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
    | Retired
    | Interrupted
    | Problem
    | TurnDone
)
