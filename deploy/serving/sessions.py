"""A session from its first request to its end. Nothing is done here: each change returns the actions that follow.

    NOT_READY --a pipeline is free--> READY --the user joins--> RUNNING --the user has left--> COMPLETED
        `------------ cancelled, or not asked after ------------> CANCELLED
    RUNNING --it has lasted long enough--> COMPLETED
    RUNNING --the pipeline failed--> FAILED
    RUNNING --its pipeline is gone--> NOT_READY, ahead of everybody else

A user who is in the room already while still queued goes from NOT_READY straight to RUNNING. Who is let in, and in
which order, is `planning.admission`'s.
"""

from __future__ import annotations

import dataclasses
import math
import secrets
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from deploy.planning.admission import Admission, Admitted, Refused, Seats
from deploy.planning.waiting import AdmissionConfig
from deploy.serving.dialects.rooms import External

_KEPT_SECONDS = 600.0  # a session that is over can still be asked after for so long
_KEPT = 1000
_AGAIN_SECONDS = 10
_AVATAR_SECONDS = 25.0  # that an avatar may be queued: its agent waits for half a minute
ROOMS = "characters-"  # rooms whose names begin otherwise are not ours


class State(StrEnum):
    """Of a session, as the API spells it."""

    NOT_READY = "NOT_READY"
    READY = "READY"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


_OVER = (State.COMPLETED, State.FAILED, State.CANCELLED)


class NotAdmitted(Exception):
    """A session may not even wait.

    Attributes:
        refused: why.
    """

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.message)
        self.refused = refused


class RoomTaken(Exception):
    """The room belongs to another user's session."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a session failed, was cancelled or reached its limit: a stable code, and a line for people."""

    code: str
    message: str


@dataclass(slots=True)
class Session:
    """One user's place. Times are seconds of the caller's clock.

    Attributes:
        id: unguessable.
        character: slug.
        room, identity, name: in LiveKit. Each session has a room of its own, whose name nobody can guess.
        tenant: name of the API key that it was asked for with.
        client: who asked for it: the holder of a key that has a name, or else an address.
        wanted: what its client calls the room; "" if it has no name for it.
        state: see the module.
        created, started, ended: when; None for what has not happened.
        asked: when its user last asked after it.
        until: when it lapses if nothing happens: a ready one not joined, a running one whose user has left.
        present: whether the user is in the room.
        seated: whether it holds a pipeline; a session that is over does until the pipeline is free again.
        waits_in_room: its user waits in the room instead of asking.
        moves: how often it has lost its pipeline.
        failure: why it is over before its time.
        dialect: whose API it was asked for by; "" for our own.
        external: the room of others in which it is an agent's avatar; None for a room and a conversation of ours.
        limit: seconds that it may last at most; 0 for no limit of its own.
        overrides: fields of `character.yaml` that differ in it.
        consumed: whether its one key to join has been used.
    """

    id: str
    character: str
    room: str
    identity: str
    name: str
    tenant: str
    created: float
    asked: float
    state: State = State.NOT_READY
    started: float | None = None
    ended: float | None = None
    until: float | None = None
    present: bool = False
    seated: bool = False
    waits_in_room: bool = False
    moves: int = 0
    failure: Failure | None = None
    client: str = ""
    wanted: str = ""
    dialect: str = ""
    external: External | None = None
    limit: float = 0.0
    overrides: dict[str, Any] = field(default_factory=dict)
    consumed: bool = False

    @property
    def over(self) -> bool:
        """Whether it has reached a last state."""
        return self.state in _OVER

    def record(self, now: float) -> dict[str, Any]:
        """All of it for `Sessions.restore` in another process, as JSON; its moments as seconds since 1970.

        Args:
            now: by the clock of the session.
        """
        found = dataclasses.asdict(self) | {"over": self.over}
        for moment in MOMENTS:
            if found[moment] is not None:
                found[moment] += time.time() - now
        return found


MOMENTS = ("created", "asked", "started", "ended", "until")


@dataclass(frozen=True, slots=True)
class Action:
    """What the caller must do now: "start" or "stop" the pipeline's call, or "close" the room."""

    kind: Literal["start", "stop", "close"]
    session: Session = field(repr=False)


class Sessions:
    """All of them.

    Args:
        admission: who may come in and who may wait.
        grace, join, poll: see `Settings.grace_s`, `join_s` and `poll_s`.
        clock: seconds.
        longest: see `Settings.max_session_s`.
    """

    def __init__(
        self,
        admission: AdmissionConfig,
        grace: float,
        join: float,
        poll: float,
        clock: Callable[[], float],
        longest: float = 0.0,
    ) -> None:
        self._grace, self._join, self._poll, self._clock = grace, join, poll, clock
        self._longest = longest or math.inf
        self._seats = Seats()
        self._admission = Admission(self._seats, admission, clock)
        self._sessions: dict[str, Session] = {}
        self._rooms: dict[str, str] = {}

    @property
    def capacity(self) -> int:
        """Sessions that may run at a time."""
        return self._seats.count

    @capacity.setter
    def capacity(self, count: int) -> None:
        self._seats.count = count

    def refuse(self, reason: str | None) -> None:
        """Let nobody in any more, for that reason; None: as usual."""
        self._seats.reason = reason

    def create(
        self,
        character: str,
        name: str = "",
        *,
        room: str = "",
        identity: str = "",
        tenant: str = "",
        client: str = "",
        most: int = 0,
        waits_in_room: bool = False,
        dialect: str = "",
        external: External | None = None,
        limit: float = 0.0,
        overrides: dict[str, Any] | None = None,
    ) -> Session:
        """A new session, ready or queued; for a room that the same user has already, or a place that the same avatar
        has, that session.

        Args:
            character, name, identity, tenant, client, waits_in_room: see `Session`.
            dialect, external, limit, overrides: see `Session`.
            room: see `Session.wanted`. Two clients may call two rooms by the same name.
            most: sessions that the client may have running and waiting; 0 = any number.

        Raises:
            NotAdmitted: too many wait, the tenant or the client has as many sessions as it may have, or none can run
                here.
            RoomTaken: the client's room is in use by another identity, or for another character.
        """
        now = self._clock()
        if external is not None and (avatar := self._avatar(external)) is not None:
            if (avatar.tenant, avatar.character) != (tenant, character):
                raise RoomTaken
            return avatar
        if room and (known := self._wanted(room, client)) is not None:
            if known.identity != identity or known.character != character:
                raise RoomTaken
            known.asked = now
            return known
        if most and sum(s.client == client and not s.over for s in self._sessions.values()) >= most:
            message = f"you have {most} conversation(s) already, and may have no more at a time"
            raise NotAdmitted(Refused("", "quota", message, _AGAIN_SECONDS))
        self._let_in(self._admission.call())
        key = uuid.uuid4().hex if dialect else secrets.token_urlsafe(12)
        decision = self._admission.ask(key, "", tenant)
        if isinstance(decision, Refused):
            raise NotAdmitted(decision)
        session = Session(
            id=key,
            character=character,
            # Not of the id: whoever is in a room knows its name. A room of others has no name here.
            room=("" if external else ROOMS) + secrets.token_urlsafe(18),
            identity=identity or f"user-{secrets.token_hex(6)}",
            name=name,
            tenant=tenant,
            created=now,
            asked=now,
            waits_in_room=waits_in_room,
            client=client,
            wanted=room,
            present=external is not None,  # an agent waits for its avatar
            dialect=dialect,
            external=external,
            limit=limit,
            overrides=overrides or {},
        )
        self._sessions[session.id] = session
        self._rooms[session.room] = session.id
        if isinstance(decision, Admitted):
            self._let_in([decision])
        return session

    def restore(self, record: dict[str, Any], running: bool) -> Session:
        """A session of another process, from its `Session.record`.

        Args:
            record: see there.
            running: whether a pipeline has it. A session that was running and that no pipeline has goes on in another.
        """
        offset = self._clock() - time.time()
        moments = {moment: record[moment] + offset for moment in MOMENTS if record[moment] is not None}
        failure = Failure(**record["failure"]) if record["failure"] else None
        fields = {name: value for name, value in record.items() if name != "over"}
        external = External(**record["external"]) if record.get("external") else None
        settled = {"state": State(record["state"]), "failure": failure, "seated": False, "external": external}
        session = Session(**(fields | moments | settled))
        self._sessions[session.id] = session
        self._rooms[session.room] = session.id
        if session.over:
            return session
        session.asked = self._clock()  # nobody could be asked meanwhile
        displaced = session.state is State.RUNNING and not running
        if displaced:
            session.state, session.waits_in_room, session.until = State.NOT_READY, True, None
        session.seated = session.state is not State.NOT_READY
        if session.seated:
            self._seats.hold(session.id)
        self._admission.restore(session.id, "", session.tenant, seated=session.seated, displaced=displaced)
        return session

    def get(self, key: str, tenant: str = "") -> Session | None:
        """The session, whose user is asking after it; None if the tenant has none of this id (any more)."""
        session = self._sessions.get(key)
        if session is None or session.tenant != tenant:
            return None
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
        return self._admission.queue.position(session.id)

    def estimated_wait(self, session: Session) -> float:
        """Seconds until a pipeline is likely to be free for it; 0 if it does not wait, infinite without pipelines."""
        if session.state is not State.NOT_READY:
            return 0.0
        return self._admission.standing(session.id).wait if self.capacity > 0 else math.inf

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

    def begin(self) -> list[Action]:
        """Those whose users are there already run as soon as they are ready."""
        return self._promote()

    def cancel(self, session: Session, talked: State = State.COMPLETED) -> list[Action]:
        """The user hangs up. `talked`: the last state of a session that ran."""
        if session.over:
            return []
        state = talked if session.state is State.RUNNING else State.CANCELLED
        return self._end(session, state) + self._promote()

    def failed(self, session: Session, code: str, message: str) -> list[Action]:
        """It cannot go on."""
        return [] if session.over else self._end(session, State.FAILED, Failure(code, message)) + self._promote()

    def freed(self, session: Session) -> list[Action]:
        """The pipeline has finished with it."""
        self._leave(session)
        return ([] if session.over else self._end(session, State.COMPLETED)) + self._promote()

    def displaced(self, session: Session) -> list[Action]:
        """Its pipeline is gone, and not through its fault: it goes on in another as soon as there is one."""
        if session.over or not session.seated:
            return self.freed(session)
        session.state, session.seated, session.waits_in_room, session.until = State.NOT_READY, False, True, None
        session.moves += 1
        self._seats.release(session.id)
        self._let_in(self._admission.displace([session.id])[0])
        return self._promote()

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
                elif session.external and not session.started and now - session.created > _AVATAR_SECONDS:
                    actions += self._end(session, State.FAILED, Failure("queue_timeout", "no pipeline came free"))
            elif session.state is State.RUNNING and now - (session.started or now) > self._limit(session):
                failure = Failure("time_limit", f"a conversation may last {self._limit(session):g} s here")
                actions += self._end(session, State.COMPLETED, failure)
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

    def _wanted(self, room: str, client: str) -> Session | None:
        return next((s for s in self._sessions.values() if not s.over and (s.wanted, s.client) == (room, client)), None)

    def _avatar(self, external: External) -> Session | None:
        places = ((s, s.external.place) for s in self._sessions.values() if s.external is not None and not s.over)
        return next((session for session, place in places if place == external.place), None)

    def _limit(self, session: Session) -> float:
        return min(self._longest, session.limit or math.inf)

    def _let_in(self, admitted: list[Admitted]) -> None:
        for one in admitted:
            session = self._sessions[one.key]
            session.state, session.seated = State.READY, True
            session.until = self._clock() + self._join

    def _leave(self, session: Session) -> None:
        session.seated = False
        self._let_in(self._admission.leave(session.id))

    def _promote(self) -> list[Action]:
        self._let_in(self._admission.call())
        return [self._run(s) for s in list(self._sessions.values()) if s.state is State.READY and s.present]

    def _run(self, session: Session) -> Action:
        session.state, session.until = State.RUNNING, None
        session.started = self._clock() if session.started is None else session.started  # before a move, too
        return Action("start", session)

    def _end(self, session: Session, state: State, failure: Failure | None = None) -> list[Action]:
        ran = session.state is State.RUNNING
        session.state, session.failure, session.ended, session.until = state, failure, self._clock(), None
        if ran and session.seated:
            return [Action("stop", session)]
        self._leave(session)
        return [Action("close", session)]

    def _forget(self, session: Session) -> None:
        del self._sessions[session.id]
        if self._rooms.get(session.room) == session.id:
            del self._rooms[session.room]
