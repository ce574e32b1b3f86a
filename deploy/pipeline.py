"""One replica = one pipeline = one placement group; one session = one streaming call."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any

import ray
from ray import serve

from actors.gang import Gang, GangFailed
from actors.session import Session
from actors.topology import Profile, plan_topology
from characters.errors import UserError
from deploy.live import changed

log = logging.getLogger("ray.serve")

FACTORY = "actors.roles.talking:build_roles"
REPLICA_CPUS = 0.05
_LOOK_SECONDS = 2.0
_HEALTH_SECONDS = 20.0  # a busy machine is slow to answer, and killing a process makes it slower
# The ingress ends a session long before; if it is gone, the pipeline does it by itself.
_FORGOTTEN_SECONDS = 90.0


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
        self._name = serve.get_replica_context().replica_id.unique_id
        self._group = ray.util.get_current_placement_group()
        self._busy = self._over = False
        self._gang = self._make()
        self._gang.prepare()
        self._next: asyncio.Task[None] | None = None

    async def session(self, session: Session) -> AsyncIterator[dict[str, Any]]:
        """Run a session until the caller cancels this call.

        Yields:
            {"state": see `actors.gang.State`, "reason": text, "stage": the room's actor, for its ledger,
            "pipeline": the replica's name}.

        Raises:
            UserError: what a role says of the session, e.g. that it cannot join the room.
            GangFailed: its processes kept dying.
        """
        if self._next is not None:
            await self._next
        gang, loop = self._gang, asyncio.get_running_loop()
        events: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        gang.on_state = lambda state, reason: loop.call_soon_threadsafe(events.put_nowait, (state, reason))
        self._busy = True
        starting = asyncio.ensure_future(asyncio.to_thread(gang.start, session))
        try:
            await asyncio.shield(starting)
            while True:
                try:
                    async with asyncio.timeout(_LOOK_SECONDS):
                        state, reason = await events.get()
                except TimeoutError:
                    if await asyncio.to_thread(_alone, gang) > _FORGOTTEN_SECONDS:
                        return
                    continue
                if state == "failed":
                    raise GangFailed(reason)
                stage = gang.handle("publisher") if state == "running" else None
                yield {"state": state, "reason": reason, "stage": stage, "pipeline": self._name}
        finally:
            # Not awaited here: a cancelled generator may not wait, and the next session waits for it anyway.
            self._next = loop.create_task(self._renew(gang, starting))

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
            self._next = asyncio.get_running_loop().create_task(self._renew(self._gang))

    async def drained(self) -> None:
        """Wait until the last session is gone and the next one could start."""
        if self._next is not None:
            await self._next

    async def check_health(self) -> None:
        """Raises if the pipeline's processes are not there, which makes Serve replace the replica."""
        if self._busy:  # a running gang looks after itself, and tells the session if it fails
            return
        await asyncio.to_thread(self._gang.check)

    async def _renew(self, gang: Gang, starting: asyncio.Future[None] | None = None) -> None:
        gang.on_state = lambda state, reason: None
        if starting is not None:  # a user may leave before the session has begun
            await asyncio.wait([starting])
            starting.exception()  # if there was one, `renew` tells of it
        made_of = self._topology
        try:
            await asyncio.to_thread(gang.renew, made_of)
        except (GangFailed, UserError) as error:
            if self._over:
                return
            log.warning("the pipeline is loaded again as a whole: %s", error)
            self._gang = self._make()
            try:
                await asyncio.to_thread(self._gang.prepare)
            except (GangFailed, UserError) as error:  # the next health check says so too
                log.error("the pipeline cannot be loaded again: %s", error)
        if made_of is not self._topology:  # reconfigured meanwhile
            await self._renew(self._gang)
        self._busy = False

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


def _alone(gang: Gang) -> float:
    """Seconds that nobody has been in the room; 0 if it cannot be told now."""
    try:
        return float(gang.call("publisher", "alone", timeout=5.0))
    except (ray.exceptions.RayError, KeyError):
        return 0.0
