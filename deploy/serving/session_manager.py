"""Makes happen what `sessions` decides: rooms on the LiveKit server, calls to the pipelines."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from livekit import api

from actors.pipeline.session import NO_AGENT, RoomAddress, SessionSpec
from actors.room.announcer import STATE
from characters.character import LoadedCharacter, list_characters
from characters.errors import UserError
from characters.media.framing import Framing
from characters.media.portrait import character_portrait
from deploy.planning.scaling import shortfall
from deploy.serving.live import Live
from deploy.serving.records import Records, Run
from deploy.serving.session_metrics import SessionMetrics
from deploy.serving.sessions import MOMENTS, ROOMS, Action, Session, Sessions, State
from deploy.serving.settings import Settings
from deploy.serving.tokens import character_identity, character_token, room_configuration

log = logging.getLogger("ray.serve")

_TICK_SECONDS = 0.5
_RECONCILE_TICKS = 10
_LIVEKIT_SECONDS = 3.0
_FOLLOW_SECONDS = 1.0
_SILENCE_SECONDS = 5.0  # of Ray; it is asked twice a second
_MOVES = 3  # a session that takes its pipeline down with it must not take all of them


@dataclass(frozen=True, slots=True)
class Replicas:
    """How the pipelines stand.

    Attributes:
        ready: names of those that take sessions.
        there: names of all, those too that only finish a talk.
        target: how many are asked for.
        capacity: how many sessions the machines hold, each within its deadline.
        lacking: why that is none, whatever is started.
        note: what one should know about these figures.
    """

    ready: frozenset[str] = frozenset()
    there: frozenset[str] = frozenset()
    target: int = 0
    capacity: int = 0
    lacking: str | None = None
    note: str = ""


class Pipelines(Protocol):
    """Where sessions run."""

    async def look(self) -> Replicas:
        """How they stand now."""
        ...

    def run(self, session: SessionSpec) -> AsyncIterator[Run]:
        """See `Pipeline.session`; closing the iterator ends the session."""
        ...

    async def trace(self, room: str) -> dict[str, Any]:
        """The Chrome trace of the session whose room's actor has this name."""
        ...

    async def stay(self) -> bool:
        """Whether they go on when this process ends, because another one is to follow it."""
        ...


class LivekitGone(Exception):
    """The LiveKit server does not answer."""


class LivekitRefused(Exception):
    """The LiveKit server does not want what it is asked for: a wrong key, a name that it does not allow."""


class PipelineGone(Exception):
    """A pipeline has ended, as a whole, under its session."""


class SessionManager:
    """Owns the sessions of one application.

    Args:
        settings: of the application.
        pipelines: where sessions run.
        frame_size: (height, width) of the model's frames, for portraits.
        records: where sessions outlive this process.
        clock: seconds.
        metrics: told how the sessions stand, if there is one.
        random_weights: whether the pictures are noise, because the model has no trained weights.
        framing: where the model wants the face of a photograph.
        portraits: kinds of portraits that the model animates; empty = nobody has tried.
    """

    def __init__(
        self,
        settings: Settings,
        pipelines: Pipelines,
        frame_size: tuple[int, int],
        records: Records,
        clock: Callable[[], float] = time.monotonic,
        metrics: SessionMetrics | None = None,
        random_weights: bool = False,
        framing: Framing | None = None,
        portraits: Sequence[str] = (),
    ) -> None:
        self.settings, self.random_weights = settings, random_weights
        self.portraits, self._framing = tuple(portraits), framing or Framing()
        self.characters: dict[str, LoadedCharacter] = {c.slug: c for c in list_characters()}
        self.sessions = Sessions(
            settings.admission, settings.grace_s, settings.join_s, settings.poll_s, clock, settings.max_session_s
        )
        self.replicas = Replicas()
        self._looked_at = clock()  # when Ray last said how the pipelines stand
        self.live = Live()
        self._clock, self._metrics = clock, metrics
        self._pipelines, self._frame_size, self._records = pipelines, frame_size, records
        self._recorded: dict[str, dict[str, Any]] = {}  # what the records hold, by session
        self._recording = asyncio.Lock()
        self._portraits: dict[str, np.ndarray] = {}
        self._calls: dict[str, asyncio.Task[bool]] = {}
        self._followed: set[str] = set()  # sessions whose call was made by a process before this one
        self._runs: dict[str, Run] = {}  # newest, by session
        self._told = ""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._api: api.LiveKitAPI | None = None

    async def start(self) -> None:
        """Begin to look after the sessions, in the running event loop: first those of a process that died."""
        await self._look()
        await self._restore()
        self._spawn(self._tend())

    async def _restore(self) -> None:
        known = await asyncio.to_thread(self._records.sessions)
        for record in sorted(known, key=lambda record: float(record["created"])):
            run = await asyncio.to_thread(self._records.run, record["id"])
            session = self.sessions.restore(record, run is not None)
            self._recorded[session.id] = record
            log.warning("session %s is known from before: %s, %s", session.id, session.state, run)
            if run is not None and not session.over:
                self._followed.add(session.id)
                self._watch(session, self._follow(session, run))

    @property
    def shortfall(self) -> str:
        """What is asked for and cannot be had; "" for nothing."""
        now, silent = self.replicas, self._clock() - self._looked_at
        if silent > _SILENCE_SECONDS:
            return f"Ray has not answered for {silent:.0f} s: nobody can be let in, and nothing that dies is replaced"
        if now.lacking:
            return now.lacking
        return shortfall(now.target, len(now.ready), now.capacity) or ""

    async def close(self) -> None:
        """End every session; or, in an upgrade, leave them to the process that comes after this one."""
        if stay := await self._pipelines.stay():
            log.warning("%d calls are left to the process that follows", len(self._calls))
        else:
            for session in self.sessions.all():
                self.act(self.sessions.cancel(session))
        await self.remember()
        # To cancel a call would end its session. Without its caller it goes on, as after this process's death.
        tasks = [] if stay else [*self._calls.values()]
        for task in [*self._tasks, *tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, *tasks, return_exceptions=True)
        if self._api is not None:
            await self._api.aclose()  # type: ignore[no-untyped-call]

    def since_1970(self, moment: float) -> float:
        """Seconds since 1970 at a moment of the sessions' clock."""
        return time.time() - self._clock() + moment

    def act(self, actions: list[Action]) -> None:
        """Do what the state machine wants done."""
        for action in actions:
            session = action.session
            match action.kind:
                case "start":
                    self._watch(session, self._run(session))
                case "stop":
                    call = self._calls.get(session.id)
                    if call is not None and session.id not in self._followed:
                        call.cancel()  # the room is closed after it: a room that goes first looks like a failure
                case "close":
                    self._spawn(self._close_room(session.room))
        self._spawn(self.remember())

    async def remember(self) -> None:
        """Write down what has changed, for the process that comes after this one."""
        async with self._recording:
            now, there = self._clock(), {session.id: session for session in self.sessions.all()}
            changed = {}
            for key, session in there.items():
                before = self._recorded.get(key)
                if before is None or not before["over"]:
                    record = session.record(now)
                    if before is None or any(before[name] != record[name] for name in record if name not in MOMENTS):
                        changed[key] = record
            gone = [key for key in self._recorded if key not in there]
            try:
                await asyncio.to_thread(self._write, changed, gone)
            except Exception as error:  # the next change brings the next attempt
                log.warning("cannot write the sessions down: %s", error)

    def _write(self, changed: dict[str, dict[str, Any]], gone: list[str]) -> None:
        for key, record in changed.items():
            self._records.save(key, record)
            self._recorded[key] = record
        for key in gone:
            self._records.forget(key)
            del self._recorded[key]

    def _watch(self, session: Session, call: Coroutine[Any, Any, bool]) -> None:
        task = self._calls[session.id] = asyncio.get_running_loop().create_task(call)
        # Not at the end of the coroutine: a task that is cancelled before its first step runs nothing at all.
        task.add_done_callback(functools.partial(self._ended, session))

    def refused(self, code: str) -> None:
        """A session was not let in, for the reason that the API gives."""
        if self._metrics is not None:
            self._metrics.refused(code)

    def entered(self, room: str) -> None:
        """Something happened in a room: one of a session that is over is closed, as a token outlives its session."""
        session = self.sessions.of_room(room)
        if session is not None and session.over and not session.seated:
            self._spawn(self._close_room(room))

    async def open_room(self, session: Session) -> None:
        """Create the session's room, so that it is known to be there.

        Raises:
            LivekitRefused: the server refuses.
            LivekitGone: it does not answer, or is in trouble itself.
        """
        if session.external is not None:
            return
        config = room_configuration(session.room)
        request = api.CreateRoomRequest(
            name=session.room,
            empty_timeout=config.empty_timeout,
            departure_timeout=config.departure_timeout,
            max_participants=config.max_participants,
            sync_streams=True,
        )
        try:
            async with asyncio.timeout(_LIVEKIT_SECONDS):
                await self._livekit().room.create_room(request)
        except Exception as error:  # the client raises whatever its transport does
            if isinstance(error, api.ServerError) and 400 <= error.status < 500:
                raise LivekitRefused(f"the LiveKit server refuses: {error.message or error.code}") from error
            raise LivekitGone(f"the LiveKit server does not answer: {error}") from error

    async def trace(self, session: Session) -> dict[str, Any] | None:
        """The Chrome trace of a running session; None if there is none now."""
        run = self._runs.get(session.id)
        return await self._pipelines.trace(run.room) if run is not None and run.room else None

    async def livekit_answers(self) -> bool:
        """Whether the server does."""
        try:
            async with asyncio.timeout(_LIVEKIT_SECONDS):
                await self._livekit().room.list_rooms(api.ListRoomsRequest(names=["-"]))
            return True
        except Exception:
            return False

    async def _run(self, session: Session) -> bool:
        """The streaming call of one session.

        Returns:
            Whether the session has lost its pipeline and is to go on in another.
        """
        told, why = "", ""
        try:
            stream = self._pipelines.run(await asyncio.to_thread(self._describe, session))
            async with contextlib.aclosing(stream) as events:  # type: ignore[type-var]
                async for run in events:
                    log.info("session %s: %s: %s", session.id, run.state, run.reason)
                    if (run.state, told, session.moves) == ("running", "starting", 0) and self._metrics is not None:
                        since = session.created if session.external else session.started or session.created
                        self._metrics.joined(session.dialect, self._clock() - since)
                    told, why = run.state, run.reason
                    self._take(session, run)
            if why == NO_AGENT:
                self.act(self.sessions.failed(session, "no_participant", why))
            if told != "stopped" and not session.over:
                raise PipelineGone("the call ended by itself, without a reason")
        except PipelineGone as error:
            log.warning("session %s has lost its pipeline: %s", session.id, error)
            if session.moves < _MOVES:
                return True
            self.act(self.sessions.failed(session, "pipeline_failed", "its pipelines kept ending"))
        except Exception as error:
            cause = getattr(error, "cause", None) or error
            code = "refused" if isinstance(cause, UserError) else "pipeline_failed"
            log.error("session %s failed: %s", session.id, cause)
            lines = str(cause).strip().splitlines()
            self.act(self.sessions.failed(session, code, lines[-1] if lines else type(cause).__name__))
        return False

    async def _follow(self, session: Session, run: Run | None) -> bool:
        """A call that a process before this one made, and that nobody here can cancel: the records say how it goes.

        Returns:
            See `_run`.
        """
        while run is not None:
            self._take(session, run)
            await asyncio.sleep(_FOLLOW_SECONDS)
            if self.replicas.there and run.pipeline not in self.replicas.there:
                return True
            try:
                run = await asyncio.to_thread(self._records.run, session.id)
            except Exception as error:
                log.warning("cannot ask how session %s stands: %s", session.id, error)
        return False

    def _take(self, session: Session, run: Run) -> None:
        """What a pipeline says of a session."""
        before, self._runs[session.id] = self._runs.get(session.id), run
        if run.state == "rebuilding" and (before is None or before.state != run.state):
            self._tell_of_rebuilding(session)

    def _tell_of_rebuilding(self, session: Session) -> None:
        """The room's process cannot say so if it is the one that has died: its state would stand, and the picture."""
        if session.external is None:  # the state of an agent's avatar is the agent's business
            self._spawn(self._mark_as_starting(session.room, character_identity(session.dialect, session.id)))

    async def _mark_as_starting(self, room: str, identity: str) -> None:
        update = api.UpdateParticipantRequest(room=room, identity=identity, attributes={STATE: "initializing"})
        with contextlib.suppress(Exception):  # the character may be out of the room already
            async with asyncio.timeout(_LIVEKIT_SECONDS):
                await self._livekit().room.update_participant(update)

    def _ended(self, session: Session, call: asyncio.Task[bool]) -> None:
        """The streaming call of a session is over."""
        displaced = False
        if not call.cancelled():
            displaced = call.result()
        elif not session.over:  # else somebody has hung up
            log.error("session %s: its call was cancelled, and nobody asked for it", session.id)
            self.act(self.sessions.failed(session, "pipeline_failed", "its call was cancelled"))
        self._calls.pop(session.id, None)
        self._followed.discard(session.id)
        run = self._runs.pop(session.id, None)
        gone = run.pipeline if run else ""
        if displaced and not session.over:
            # Until Serve has noticed, too: nobody is to be sent there.
            self.sessions.capacity = self._capacity(self.replicas.ready - {gone})
            self._spawn(asyncio.to_thread(self._records.report, session.id, None))
            self._tell_of_rebuilding(session)
            self.act(self.sessions.displaced(session))
        else:
            self._spawn(self._close_room(session.room))
            self.act(self.sessions.freed(session))

    def _describe(self, session: Session) -> SessionSpec:
        """What the pipeline needs to know."""
        loaded, live = self.characters[session.character], self.live
        character = live.applied(session.character, loaded.character)
        if session.overrides:
            character = dataclasses.replace(character, **session.overrides)
        if session.character not in self._portraits:
            self._portraits[session.character] = character_portrait(loaded, *self._frame_size, self._framing)
        access, external = self.settings.livekit, session.external
        if external is not None:
            room = RoomAddress("livekit", external.url, external.token, live.bitrate, external.agent)
        else:
            identity = character_identity(session.dialect, session.id)
            token = character_token(access, session.room, loaded.slug, character.name, identity)
            room = RoomAddress("livekit", access.url, token, live.bitrate, plain=bool(session.dialect))
        return SessionSpec(
            portrait=self._portraits[session.character],
            seed=self.settings.seed,
            room=room,
            character=character,
            id=session.id,
            user=session.identity,
            again=session.moves > 0 or (session.external is not None and session.waits_in_room),
        )

    async def _tend(self) -> None:
        ticks = 0
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            ticks += 1
            try:
                await self._look()
                self.act(self.sessions.tick())
                if self._metrics is not None:
                    self._metrics.observe(self.sessions.all(), self.sessions.capacity, self._clock())
                if ticks % _RECONCILE_TICKS == 0:
                    await self._reconcile()
            except Exception:  # this loop must outlive whatever Serve or LiveKit answer in a bad moment
                log.exception("looking after the sessions failed; going on")

    async def _look(self) -> None:
        now = self.replicas = await self._pipelines.look()
        self._looked_at = self._clock()
        self.sessions.capacity = self._capacity(now.ready)
        self.sessions.refuse(now.lacking)
        told = self.shortfall or now.note
        if told and told != self._told:
            log.warning("%s", told)
        self._told = told

    def _capacity(self, ready: frozenset[str]) -> int:
        """Seats: one for each pipeline that takes sessions, and those that sessions still hold on any that is going."""
        staying = sum(run.pipeline not in ready for run in self._runs.values())
        return min(len(ready) + staying, self.replicas.capacity)

    async def _reconcile(self) -> None:
        """Webhooks can be lost, with a server that dies or one that was never told of us: ask who is in the rooms."""
        ours = [session for session in self.sessions.all() if session.external is None]
        open_ones = {s.room: s for s in ours if s.state in (State.READY, State.RUNNING)}
        ended = [s.room for s in ours if s.over and not s.seated]
        if not open_ones and not ended:
            return
        try:
            if ended:
                async with asyncio.timeout(_LIVEKIT_SECONDS):
                    again = await self._livekit().room.list_rooms(api.ListRoomsRequest(names=ended))
                for reopened in again.rooms:
                    await self._close_room(reopened.name)
            async with asyncio.timeout(_LIVEKIT_SECONDS):
                for room, session in open_ones.items():
                    found = await self._livekit().room.list_participants(api.ListParticipantsRequest(room=room))
                    there = session.identity in {p.identity for p in found.participants}
                    if there != session.present:
                        note = self.sessions.joined if there else self.sessions.left
                        self.act(note(room, session.identity))
        except Exception as error:
            log.warning("cannot ask the LiveKit server who is there: %s", error)

    async def _close_room(self, room: str) -> None:
        if not room.startswith(ROOMS):  # of another application on this server, which an older version let users name
            return
        with contextlib.suppress(Exception):  # it may never have been opened, or be gone with its server
            async with asyncio.timeout(_LIVEKIT_SECONDS):
                await self._livekit().room.delete_room(api.DeleteRoomRequest(room=room))

    def _livekit(self) -> api.LiveKitAPI:
        if self._api is None:
            access = self.settings.livekit
            self._api = api.LiveKitAPI("http" + access.url.removeprefix("ws"), access.key, access.secret)
        return self._api

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
