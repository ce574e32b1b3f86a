"""Admission: who waits, who may come in, who is in, and when it is over. Pure; the clock is whoever calls.

    NOT_READY --a pipeline is free--> READY --the user joins--> RUNNING --the user has left--> COMPLETED
        `------------ cancelled, or not asked after ------------> CANCELLED
    RUNNING --the pipeline failed--> FAILED

A user who is in the room already while still queued goes from NOT_READY straight to RUNNING.
"""

from __future__ import annotations

import math
import secrets
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import fmean
from typing import Literal

_TYPICAL_SECONDS = 120.0  # a session, until one has been seen
_KEPT_SECONDS = 600.0  # a session that is over can still be asked after for so long
_KEPT = 1000


class State(StrEnum):
    """Of a session, as the API spells it."""

    NOT_READY = "NOT_READY"
    READY = "READY"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


_OVER = (State.COMPLETED, State.FAILED, State.CANCELLED)


class QueueFull(Exception):
    """Nobody else may wait."""


class RoomTaken(Exception):
    """The room belongs to another user's session."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a session failed or was cancelled: a stable code, and a line for people."""

    code: str
    message: str


@dataclass(slots=True)
class Session:
    """One user's place. Times are seconds of the caller's clock.

    Attributes:
        id: unguessable.
        character: slug.
        room, identity, name: in LiveKit.
        state: see the module.
        created, started, ended: when; None for what has not happened.
        asked: when its user last asked after it.
        until: when it lapses if nothing happens: a ready one not joined, a running one whose user has left.
        present: whether the user is in the room.
        seated: whether it holds a pipeline; a session that is over does until the pipeline is free again.
        waits_in_room: its user waits in the room instead of asking.
        failure: why it is over before its time.
    """

    id: str
    character: str
    room: str
    identity: str
    name: str
    created: float
    asked: float
    state: State = State.NOT_READY
    started: float | None = None
    ended: float | None = None
    until: float | None = None
    present: bool = False
    seated: bool = False
    waits_in_room: bool = False
    failure: Failure | None = None

    @property
    def over(self) -> bool:
        """Whether it has reached a last state."""
        return self.state in _OVER


@dataclass(frozen=True, slots=True)
class Action:
    """What the caller must do now: "start" or "stop" the pipeline's call, or "close" the room."""

    kind: Literal["start", "stop", "close"]
    session: Session = field(repr=False)


class Sessions:
    """All of them.

    Args:
        queue: users that may wait.
        grace, join, poll: see `Settings.grace_s`, `join_s` and `poll_s`.
        clock: seconds.

    Attributes:
        capacity: pipelines there are.
    """

    def __init__(self, queue: int, grace: float, join: float, poll: float, clock: Callable[[], float]) -> None:
        self.capacity = 0
        self._queue, self._grace, self._join, self._poll, self._clock = queue, grace, join, poll, clock
        self._sessions: dict[str, Session] = {}
        self._rooms: dict[str, str] = {}
        self._lengths: deque[float] = deque(maxlen=50)

    def create(
        self, character: str, name: str = "", *, room: str = "", identity: str = "", waits_in_room: bool = False
    ) -> Session:
        """A new session, ready or queued; for a room that the same user has already, that session.

        Raises:
            QueueFull: too many wait.
            RoomTaken: the room is in use by another identity, or for another character.
        """
        now = self._clock()
        if room and (known := self._by_room(room)) and not known.over:
            if known.identity != identity or known.character != character:
                raise RoomTaken
            known.asked = now
            return known
        if self._free() <= 0 and len(self._waiting()) >= self._queue:
            raise QueueFull
        key = secrets.token_urlsafe(12)
        session = Session(
            id=key,
            character=character,
            room=room or f"characters-{key}",
            identity=identity or f"user-{secrets.token_hex(6)}",
            name=name,
            created=now,
            asked=now,
            waits_in_room=waits_in_room,
        )
        self._sessions[session.id] = session
        self._rooms[session.room] = session.id
        self._admit()
        return session

    def get(self, key: str) -> Session | None:
        """The session, whose user is asking after it; None if there is none of this id (any more)."""
        session = self._sessions.get(key)
        if session is not None:
            session.asked = self._clock()
        return session

    def of_room(self, room: str) -> Session | None:
        """The newest session of a room."""
        return self._by_room(room)

    def all(self) -> list[Session]:
        """All that are known, by age."""
        return list(self._sessions.values())

    def position(self, session: Session) -> int:
        """1 for who is next; 0 for who does not wait."""
        waiting = self._waiting()
        return waiting.index(session) + 1 if session in waiting else 0

    def estimated_wait(self, session: Session) -> float:
        """Seconds until a pipeline is likely to be free for it; 0 if it does not wait, infinite without pipelines."""
        place = self.position(session)
        if place == 0:
            return 0.0
        if self.capacity < 1:
            return math.inf
        typical = fmean(self._lengths) if self._lengths else _TYPICAL_SECONDS
        now = self._clock()
        seated = [s for s in self._sessions.values() if s.seated]
        left = sorted(max(typical - (now - (s.started or now)), 5.0) for s in seated)[: self.capacity]
        left += [0.0] * (self.capacity - len(left))
        rounds, nth = divmod(place - 1, self.capacity)
        return left[nth] + rounds * typical

    def joined(self, room: str, identity: str) -> list[Action]:
        """A user came into a room."""
        session = self._by_room(room)
        if session is None or session.over or session.identity != identity:
            return []
        session.present, session.asked = True, self._clock()
        if session.state is State.READY:
            return [self._run(session)]
        if session.state is State.RUNNING:
            session.until = None
        return []

    def left(self, room: str, identity: str) -> list[Action]:
        """A user left a room: the character stays for the grace period."""
        session = self._by_room(room)
        if session is None or session.over or session.identity != identity:
            return []
        session.present, session.asked = False, self._clock()
        if session.state is State.RUNNING:
            session.until = self._clock() + self._grace
        return []

    def cancel(self, session: Session) -> list[Action]:
        """The user hangs up."""
        if session.over:
            return []
        state = State.COMPLETED if session.state is State.RUNNING else State.CANCELLED
        return self._end(session, state) + self._promote()

    def failed(self, session: Session, code: str, message: str) -> list[Action]:
        """It cannot go on."""
        return [] if session.over else self._end(session, State.FAILED, Failure(code, message)) + self._promote()

    def freed(self, session: Session) -> list[Action]:
        """The pipeline has finished with it."""
        session.seated = False
        return ([] if session.over else self._end(session, State.COMPLETED)) + self._promote()

    def tick(self) -> list[Action]:
        """What time brings: those who have gone lose their place, those who wait get theirs."""
        now, actions = self._clock(), list[Action]()
        for session in list(self._sessions.values()):
            if session.over:
                if session.ended is not None and now - session.ended > _KEPT_SECONDS and not session.seated:
                    self._forget(session)
            elif session.state is State.NOT_READY:
                lapse = self._join if session.waits_in_room else self._poll
                if not session.present and now - session.asked > lapse:
                    actions += self._end(session, State.CANCELLED, Failure("left_queue", "nobody asked any more"))
            elif session.until is not None and now > session.until:
                if session.state is State.READY:
                    failure = Failure("not_joined", "nobody joined the room in time")
                    actions += self._end(session, State.CANCELLED, failure)
                else:
                    actions += self._end(session, State.COMPLETED)
        over = [s for s in self._sessions.values() if s.over and not s.seated]
        for session in over[: max(0, len(over) - _KEPT)]:
            self._forget(session)
        return actions + self._promote()

    def _by_room(self, room: str) -> Session | None:
        return self._sessions.get(self._rooms.get(room, ""))

    def _waiting(self) -> list[Session]:
        return [s for s in self._sessions.values() if s.state is State.NOT_READY]

    def _free(self) -> int:
        return self.capacity - sum(s.seated for s in self._sessions.values())

    def _admit(self) -> None:
        """In arrival order: a newcomer never passes one who waits."""
        for session in self._waiting()[: max(0, self._free())]:
            session.state, session.seated = State.READY, True
            session.until = self._clock() + self._join

    def _promote(self) -> list[Action]:
        self._admit()
        return [self._run(s) for s in list(self._sessions.values()) if s.state is State.READY and s.present]

    def _run(self, session: Session) -> Action:
        session.state, session.until, session.started = State.RUNNING, None, self._clock()
        return Action("start", session)

    def _end(self, session: Session, state: State, failure: Failure | None = None) -> list[Action]:
        ran = session.state is State.RUNNING
        session.state, session.failure, session.ended, session.until = state, failure, self._clock(), None
        if not ran:
            session.seated = False
            return [Action("close", session)]
        if session.started is not None:
            self._lengths.append(self._clock() - session.started)
        return [Action("stop", session)] if session.seated else [Action("close", session)]

    def _forget(self, session: Session) -> None:
        del self._sessions[session.id]
        if self._rooms.get(session.room) == session.id:
            del self._rooms[session.room]
