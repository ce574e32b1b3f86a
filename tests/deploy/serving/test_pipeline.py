"""A pipeline outside Serve, with processes that are not there."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from typing import Any

import numpy as np
import pytest
import ray

from actors.pipeline.gang import GangFailed
from actors.pipeline.session import SessionSpec
from actors.pipeline.topology import load_profile, plan_topology
from actors.voice.config import VoiceConfig
from deploy.serving.pipeline import Pipeline, PipelineBroken
from deploy.serving.records import Records, Run
from tests.deploy.store import FakeStore

SESSION = SessionSpec(np.zeros((2, 2, 3), np.uint8), id="one")


class _Gang:
    """Counts how often it is made ready again."""

    def ended(self) -> str:
        return ""

    def __init__(self, topology: Any) -> None:
        self.topology, self.renewed, self.starting = topology, 0, False
        self.fails: Exception | None = None
        self.seconds, self.joins = 0.0, 0.5  # that a renewal and a start take
        self.dead: ray.exceptions.RayError | None = None
        self.abandoned = threading.Event()

    def prepare(self) -> None:
        if self.fails is not None:
            raise self.fails

    def check(self) -> None:
        if self.dead is not None:
            raise self.dead

    def start(self, session: Any) -> None:
        self.starting = True
        self.abandoned.wait(self.joins)
        self.starting = False

    def abandon(self) -> None:
        self.abandoned.set()

    def renew(self, topology: Any) -> None:
        assert not self.starting
        time.sleep(self.seconds)
        if self.fails is not None:
            raise self.fails
        self.topology, self.renewed, self.dead = topology, self.renewed + 1, None
        self.abandoned.clear()

    def stop(self) -> None:
        pass


async def listen(pipeline: Pipeline) -> list[Run]:
    """A session, until it ends or this is cancelled."""
    async with contextlib.aclosing(pipeline.session(SESSION)) as events:  # type: ignore[type-var]
        return [run async for run in events]


class _Idle(Pipeline):
    """A pipeline outside Serve."""

    def __init__(self) -> None:
        self._profile = load_profile("laptop")
        self._topology = plan_topology(self._profile)
        self._busy, self._renewal, self._over = False, None, False
        self._renewing_since, self._renewal_limit, self._broken, self._name = None, 60.0, "", "idle"
        self._records = Records("test", FakeStore())
        self.made = 0
        self.unloadable: Exception | None = None  # what the next gang that is made will say
        self._gang = self._make()

    def _make(self) -> Any:
        self.made += 1
        gang = _Gang(self._topology)
        gang.fails = self.unloadable
        return gang


def test_an_idle_pipeline_takes_another_language_model_and_a_busy_one_when_it_is_free() -> None:
    async def play() -> None:
        pipeline = _Idle()
        await pipeline.reconfigure({})
        await pipeline.reconfigure({"llm": {"engine": "nonsense"}})
        assert pipeline._gang.renewed == 0, "nothing to change"
        await pipeline.reconfigure({"llm": {"engine": "openai", "model": "m"}})
        await pipeline.drained()
        assert (pipeline._gang.renewed, pipeline._gang.topology.profile.voice.llm.model) == (1, "m")
        pipeline._busy = True
        await pipeline.reconfigure({"llm": {"engine": "openai", "model": "n"}})
        assert pipeline._gang.renewed == 1, "its session keeps what it has"
        await pipeline._renew(pipeline._gang)
        assert pipeline._gang.topology.profile.voice.llm.model == "n"
        await pipeline.reconfigure({})
        await pipeline.drained()
        assert pipeline._gang.topology.profile.voice == VoiceConfig()
        assert pipeline.made == 1
        pipeline._gang.fails = GangFailed("asked to")
        await pipeline._renew(pipeline._gang)
        assert (pipeline.made, pipeline._gang.renewed) == (2, 0), "what cannot be renewed is made anew"

    asyncio.run(play())


def test_who_leaves_before_the_session_has_begun_leaves_the_pipeline_in_order() -> None:
    async def play() -> None:
        pipeline = _Idle()
        first = asyncio.ensure_future(listen(pipeline))
        await asyncio.sleep(0.1)
        assert pipeline._gang.starting
        first.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await first
        await pipeline.drained()
        assert (pipeline.made, pipeline._gang.renewed, pipeline._busy) == (1, 1, False)

    asyncio.run(play())


def test_who_leaves_while_the_room_is_joined_holds_nobody_up() -> None:
    """A room that is closed meanwhile lets nobody in, for half a minute."""

    async def play() -> None:
        pipeline = _Idle()
        pipeline._gang.joins = 25.0
        began = time.monotonic()
        await hang_up(pipeline, 0.1)
        await pipeline.drained()
        assert time.monotonic() - began < 5
        assert (pipeline.made, pipeline._gang.renewed) == (1, 1), "the model is not loaded again"

    asyncio.run(play())


def test_a_process_that_dies_between_sessions_is_replaced_and_not_the_model() -> None:
    async def play() -> None:
        pipeline = _Idle()
        pipeline._gang.dead = ray.exceptions.ActorDiedError()
        await pipeline.check_health()
        await pipeline.drained()
        await pipeline.check_health()
        assert (pipeline.made, pipeline._gang.renewed) == (1, 1)
        assert await takes_a_session(pipeline)

    asyncio.run(play())


async def hang_up(pipeline: _Idle, seconds: float) -> None:
    """Ask for a session, and go after so many seconds."""
    first = asyncio.ensure_future(listen(pipeline))
    await asyncio.sleep(seconds)
    first.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await first


async def takes_a_session(pipeline: _Idle) -> bool:
    """Whether its processes start one."""
    first = asyncio.ensure_future(listen(pipeline))
    give_up = time.monotonic() + 5
    while not (started := pipeline._gang.starting) and not first.done() and time.monotonic() < give_up:
        await asyncio.sleep(0.01)
    first.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await first
    return bool(started)


def test_thirty_who_hang_up_while_the_pipeline_gets_ready_do_not_stop_it() -> None:
    async def play() -> None:
        pipeline = _Idle()
        pipeline._gang.seconds = 0.5
        await hang_up(pipeline, 0.1)
        for _ in range(30):
            await hang_up(pipeline, 0.01)
        assert await takes_a_session(pipeline)
        await pipeline.drained()
        await pipeline.check_health()
        assert (pipeline.made, pipeline._busy) == (1, False)

    asyncio.run(play())


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("?"), GangFailed("asked to")])
def test_whatever_goes_wrong_between_sessions_the_next_one_is_taken(error: Exception) -> None:
    async def play() -> None:
        pipeline = _Idle()
        pipeline._gang.fails = error
        await hang_up(pipeline, 0.1)
        await pipeline.drained()
        assert await takes_a_session(pipeline)
        assert pipeline.made == 2

    asyncio.run(play())


def test_what_cannot_be_loaded_again_is_unhealthy_and_says_so_to_its_callers() -> None:
    async def play() -> None:
        pipeline = _Idle()
        pipeline._gang.fails = pipeline.unloadable = OSError(28, "No space left on device")
        await hang_up(pipeline, 0.1)
        await pipeline.drained()
        with pytest.raises(PipelineBroken, match="No space"):
            await pipeline.check_health()
        with pytest.raises(PipelineBroken, match="No space"):
            await listen(pipeline)

    asyncio.run(play())


def test_a_pipeline_that_does_not_get_ready_is_unhealthy() -> None:
    async def play() -> None:
        pipeline = _Idle()
        pipeline._gang.seconds, pipeline._renewal_limit = 1.0, 0.1
        await hang_up(pipeline, 0.1)
        await pipeline.check_health()
        await asyncio.sleep(0.8)
        with pytest.raises(PipelineBroken, match="takes over"):
            await pipeline.check_health()
        await pipeline.drained()
        await pipeline.check_health()

    asyncio.run(play())


def test_a_session_that_its_record_says_is_over_ends_though_nobody_cancels_its_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("deploy.serving.pipeline._LOOK_SECONDS", 0.1)
    monkeypatch.setattr("deploy.serving.pipeline._alone", lambda gang: 0.0)

    async def play() -> None:
        pipeline = _Idle()
        call = asyncio.ensure_future(listen(pipeline))
        await asyncio.sleep(1.0)
        run = pipeline._records.run("one")
        assert run is not None and (run.pipeline, run.state) == ("idle", "starting")
        pipeline._records.save("one", {"over": False})
        await asyncio.sleep(0.3)
        assert not call.done()
        pipeline._records.save("one", {"over": True})
        assert [run.state for run in await asyncio.wait_for(call, 2)] == ["starting", "stopped"]
        await pipeline.drained()
        assert pipeline._records.run("one") is None
        assert await asyncio.wait_for(listen(pipeline), 2) == [], "it is not begun again"
        assert pipeline._gang.renewed == 1

    asyncio.run(play())
