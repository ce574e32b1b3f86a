"""One replica = one pipeline = one placement group; one session = one streaming call."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, TypeVar

import ray
from ray import serve

from actors.pipeline.gang import Gang, GangFailed
from actors.pipeline.session import SessionSpec
from actors.pipeline.topology import Profile, Topology, plan_topology
from characters.errors import UserError
from deploy.serving.live import changed
from deploy.serving.records import ClusterStore, Records, Run

log = logging.getLogger("ray.serve")

T = TypeVar("T")

FACTORY = "actors.room.talking:build_roles"
REPLICA_CPUS = 0.05
_LOOK_SECONDS = 2.0
_HEALTH_SECONDS = 20.0  # a busy machine is slow to answer, and killing a process makes it slower
# The ingress ends a session long before; if it is gone, the pipeline does it by itself.
_FORGOTTEN_SECONDS = 90.0
# How long a renewal may take beyond the time that loading everything takes: after that the pipeline is stuck.
_RENEWAL_SECONDS = 300.0


class PipelineBroken(Exception):
    """The pipeline cannot take a session and is about to be replaced; another one, or its successor, can."""


class Pipeline:
    """Processes of one session after another: always loaded, so that a user does not wait for a model.

    Each session gets a fresh process for its room, which is what knows a user: nothing of one is left when the next one
    comes. The model's processes keep their weights, which take minutes to load for a large model, and start over from
    the next portrait.

    Args:
        profile: what to run; its bundles follow the replica's own in the replica's placement group.
    """

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._topology = plan_topology(profile)
        context = serve.get_replica_context()
        self._name = context.replica_id.unique_id
        self._records = Records(context.app_name, ClusterStore())
        self._group = ray.util.get_current_placement_group()
        self._busy = self._over = False
        self._renewal: asyncio.Task[None] | None = None
        self._renewing_since: float | None = None
        self._broken = ""  # why no session can be taken any more
        began = time.monotonic()
        self._gang = self._make()
        self._gang.prepare()
        self._renewal_limit = _RENEWAL_SECONDS + 2 * (time.monotonic() - began)

    async def session(self, session: SessionSpec) -> AsyncIterator[Run]:
        """Run a session until the caller cancels this call, its record says that it is over, everybody has left, or the
        agent that it speaks for has.

        The death of the caller changes nothing: whoever comes after it finds what runs in the records.

        Yields:
            What is in the records too. "stopped" is the last state.

        Raises:
            UserError: what a role says of the session, e.g. that it cannot join the room.
            GangFailed: its processes kept dying.
            PipelineBroken: the session was not begun; it can be on another pipeline.
        """
        await self.drained()
        if self._broken:
            raise PipelineBroken(self._broken)
        if await self._is_over(session):
            return
        gang, loop = self._gang, asyncio.get_running_loop()
        events: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        gang.on_state = lambda state, reason: loop.call_soon_threadsafe(events.put_nowait, (state, reason))
        self._busy = True
        starting = _apart(gang.start, session)
        try:
            yield await self._report(session, "starting", "")
            await asyncio.shield(starting)
            while True:
                try:
                    async with asyncio.timeout(_LOOK_SECONDS):
                        state, reason = await events.get()
                except TimeoutError:
                    if await self._is_over(session):
                        yield await self._report(session, "stopped", "the session is over")
                        return
                    if reason := await _apart(_ended, gang):
                        yield await self._report(session, "stopped", reason)
                        return
                    if await _apart(_alone, gang) > _FORGOTTEN_SECONDS:
                        yield await self._report(session, "stopped", "nobody was in the room any more")
                        return
                    continue
                if state == "failed":
                    raise GangFailed(reason)
                yield await self._report(session, state, reason, gang.name("publisher") if state == "running" else "")
        finally:
            # Not awaited here: a cancelled generator may not wait, and the next session waits for it anyway.
            self._begin_renewal(gang, session, starting)

    async def reconfigure(self, user_config: Mapping[str, Any]) -> None:
        """How the next session hears, thinks and speaks: fields of `VoiceConfig` that differ from the profile's.

        A session that runs keeps what it began with. What is wrong is logged and changes nothing: to raise would make
        Serve end the replica, and its session.
        """
        try:
            voice = changed(self._profile.voice, user_config, "voice")
        except UserError as error:
            log.error("%s", error)
            return
        if voice == self._topology.profile.voice:
            return
        self._topology = plan_topology(dataclasses.replace(self._profile, voice=voice))
        if not self._busy:  # else the session's end does it
            self._busy = True
            self._begin_renewal(self._gang)

    async def drained(self) -> None:
        """Wait until the last session is gone and the next one could start; who gives up waiting changes nothing."""
        if self._renewal is not None:
            await asyncio.shield(self._renewal)

    async def check_health(self) -> None:
        """Raises if the pipeline cannot take the next session, which makes Serve replace the replica."""
        if self._broken:
            raise PipelineBroken(self._broken)
        if self._renewing_since is not None and time.monotonic() - self._renewing_since > self._renewal_limit:
            raise PipelineBroken(f"getting ready for the next session takes over {self._renewal_limit:.0f} s")
        if self._busy:  # a running gang looks after itself, and tells the session if it fails
            return
        try:
            await _apart(self._gang.check)
        except ray.exceptions.RayError as error:
            if not self._busy:  # the others keep their weights
                log.warning("a process of the idle pipeline has ended: %s", error)
                self._busy = True
                self._begin_renewal(self._gang)

    async def _is_over(self, session: SessionSpec) -> bool:
        """Whether the application's record says so; not if it cannot be asked."""
        try:
            return bool(session.id) and await _apart(self._records.over, session.id)
        except Exception as error:
            log.warning("cannot ask whether session %s is over: %s", session.id, error)
            return False

    async def _report(self, session: SessionSpec, state: str, reason: str, room: str = "") -> Run:
        run = Run(self._name, state, reason, room)
        await self._record(session, run)
        return run

    async def _record(self, session: SessionSpec, run: Run | None) -> None:
        try:
            if session.id:
                await _apart(self._records.report, session.id, run)
        except Exception as error:  # the talk goes on without
            log.warning("cannot record what session %s does: %s", session.id, error)

    def _begin_renewal(
        self, gang: Gang, session: SessionSpec | None = None, starting: asyncio.Future[None] | None = None
    ) -> None:
        self._renewing_since = time.monotonic()
        self._renewal = asyncio.get_running_loop().create_task(self._renew(gang, session, starting))

    async def _renew(
        self, gang: Gang, session: SessionSpec | None = None, starting: asyncio.Future[None] | None = None
    ) -> None:
        """Get ready for the next session. Raises nothing: what cannot be mended is told by the health check."""
        gang.on_state = lambda state, reason: None
        if starting is not None:  # a user may leave before the session has begun
            gang.abandon()
            await asyncio.wait([starting])
            starting.exception()  # if there was one, `renew` tells of it
        if session is not None:
            await self._record(session, None)
        try:
            made_of = None
            while made_of is not self._topology:  # it may be reconfigured meanwhile
                made_of = self._topology
                await self._renew_or_load(made_of)
        except Exception as error:  # whatever it is, a pipeline that takes calls and ends them at once is worse
            if not self._over:
                log.exception("the pipeline cannot be loaded again")
                self._broken = f"it cannot be loaded again: {error}"
        self._busy, self._renewing_since = False, None

    async def _renew_or_load(self, topology: Topology) -> None:
        try:
            await _apart(self._gang.renew, topology)
        except Exception as error:  # of the old processes, which are let go of
            if self._over:
                return
            log.warning("the pipeline is loaded again as a whole: %s", error)
            await _apart(self._gang.stop)
            self._gang = self._make()
            await _apart(self._gang.prepare)

    def _make(self) -> Gang:
        first = 1 if self._group else 0
        return Gang(
            self._topology, factory=FACTORY, group=self._group, first_bundle=first, health_timeout=_HEALTH_SECONDS
        )

    def __del__(self) -> None:
        self._over = True
        gang = getattr(self, "_gang", None)
        if gang is not None:
            gang.stop()


def _apart(work: Callable[..., T], *args: Any) -> asyncio.Future[T]:
    """Run `work` in a thread that is no part of the Serve call.

    `asyncio.to_thread` would make it one: it copies the context, in which Ray finds the call that runs. Actor calls
    made there would be the call's children, and Ray cancels them with it: the stages would be killed with every
    session.
    """
    return asyncio.get_running_loop().run_in_executor(None, work, *args)


def _alone(gang: Gang) -> float:
    """Seconds that nobody has been in the room; 0 if it cannot be told now."""
    try:
        return gang.alone()
    except (ray.exceptions.RayError, KeyError):
        return 0.0


def _ended(gang: Gang) -> str:
    """Why the session is over by itself; "" if it is not, or if it cannot be told now."""
    try:
        return gang.ended()
    except (ray.exceptions.RayError, KeyError):
        return ""
