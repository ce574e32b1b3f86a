"""What the voice bridge reports, event by event, and the trace of one turn."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np


@dataclass(frozen=True, slots=True)
class TimedWord:
    """A word and the samples in which it sounds, at 24 kHz, counted from the start of its response."""

    text: str
    start: int
    end: int


@dataclass(slots=True)
class TurnTrace:
    """Timestamps of one turn, in seconds of the bridge's clock; None for what has not happened.

    Attributes:
        turn: number of the turn in the session, from 1; 0 is the greeting.
        speech_start, speech_end: of the user's voice, as it came in. A typed turn has the same time in both.
        stt_done: the transcript was ready.
        decided: the user's turn was judged over.
        first_token: the first text of the reply was there.
        first_pcm: the first sound of the reply was emitted.
        first_heard: the first sound of the reply was played.
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


# The user's side.


@dataclass(frozen=True, slots=True)
class UserStartedSpeaking:
    """The user has begun to speak. `time`: when this was decided; `onset`: when the voice began (bridge's clock)."""

    time: float
    onset: float


@dataclass(frozen=True, slots=True)
class UserText:
    """Transcript of the user's open turn, for captions; the final one comes as `UserTurn`."""

    text: str


@dataclass(frozen=True, slots=True)
class UserTurn:
    """The user's turn is over. `start` and `end`: of the voice, on the bridge's clock; `typed`: it came by chat."""

    turn: int
    text: str
    start: float
    end: float
    typed: bool = False


@dataclass(frozen=True, slots=True)
class Backchannel:
    """The user's sound was not a turn: encouragement ("mm-hm", its text) or a noise (text "")."""

    text: str


# The character's side.


@dataclass(frozen=True, slots=True)
class ReplyStarted:
    """A reply begins under a new response, or its rest does: then `resumes` is the response that was cancelled."""

    response_id: int
    turn: int
    resumes: int | None = None


@dataclass(frozen=True, slots=True)
class ReplyAudio:
    """A stretch of the reply's voice, usually one clause.

    Attributes:
        response_id: of the reply.
        pcm: float32 [n], mono at 24 kHz; follows the response's stretch before it without a gap.
        text: what is said in it.
        words: when each word sounds.
        start: samples of the response before this stretch.
    """

    response_id: int
    pcm: np.ndarray
    text: str
    words: tuple[TimedWord, ...]
    start: int


@dataclass(frozen=True, slots=True)
class ReplyText:
    """Transcript of the reply as far as it has been heard: the whole text, which replaces the one before."""

    response_id: int
    text: str
    final: bool


@dataclass(frozen=True, slots=True)
class ReplyMade:
    """All of the reply's sound has been emitted: `samples` at 24 kHz in all under this response."""

    response_id: int
    samples: int


@dataclass(frozen=True, slots=True)
class ReplyHeard:
    """The reply has been heard to its end."""

    response_id: int
    text: str


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The response is to stop at the next chunk border; the rest of it is to be dropped.

    `time` is when this was decided. `Interrupted` follows, or a `ReplyStarted` that resumes the reply.
    """

    response_id: int
    time: float


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The user has interrupted the reply. `heard_text` is what they heard of it; only that is remembered."""

    response_id: int
    heard_text: str


# About both.


@dataclass(frozen=True, slots=True)
class VoiceError:
    """A part failed; the conversation goes on. `message` is one line for the log and the user."""

    stage: str
    message: str


@dataclass(frozen=True, slots=True)
class TurnDone:
    """The trace of a turn whose first sound has been heard."""

    trace: TurnTrace


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
