from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import pytest

from actors.gang import GangFailed
from actors.session import RoomAddress
from actors.topology import load_profile, plan_topology
from actors.voice.config import VoiceConfig
from characters.character import load_character
from characters.errors import UserError
from deploy.live import Live, changed
from deploy.pipeline import Pipeline


def test_what_is_changed_is_changed_and_the_rest_stays() -> None:
    given = {"bitrate": 800_000, "characters": {"ruby": {"persona": "You are shy.", "voice": {"pitch": 2.0}}}}
    live = changed(Live(), given, "ingress")
    ruby, miso = load_character("ruby").character, load_character("miso").character
    shy = live.applied("ruby", ruby)
    assert live.bitrate == 800_000
    assert (shy.persona, shy.voice.pitch) == ("You are shy.", 2.0)
    assert (shy.name, shy.voice.engine) == (ruby.name, ruby.voice.engine)
    assert live.applied("miso", miso) == miso
    assert changed(Live(), {}, "ingress") == Live(RoomAddress().bitrate)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"bitrates": 1}, "bitrates"),
        ({"bitrate": "fast"}, "fast"),
        ({"bitrate": 1}, "at least 10000"),
        ({"characters": {"ruby": {"voice": {"pitch": 99}}}}, "semitones"),
        ({"characters": {"ruby": {"mood": "shy"}}}, "mood"),
    ],
)
def test_what_is_wrong_is_the_users_error(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        changed(Live(), given, "ingress").applied("ruby", load_character("ruby").character)


class _Gang:
    """Counts how often it is made ready again."""

    def __init__(self, topology: Any) -> None:
        self.topology, self.renewed, self.fails, self.starting = topology, 0, False, False

    def prepare(self) -> None:
        pass

    def start(self, session: Any) -> None:
        self.starting = True
        time.sleep(0.5)
        self.starting = False

    def renew(self, topology: Any) -> None:
        assert not self.starting
        if self.fails:
            raise GangFailed("asked to")
        self.topology, self.renewed = topology, self.renewed + 1

    def stop(self) -> None:
        pass


class _Idle(Pipeline):
    """A pipeline outside Serve."""

    def __init__(self) -> None:
        self._profile = load_profile("laptop")
        self._topology = plan_topology(self._profile)
        self._busy, self._next, self._over = False, None, False
        self.made = 0
        self._gang = self._make()

    def _make(self) -> Any:
        self.made += 1
        return _Gang(self._topology)


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
        pipeline._gang.fails = True
        await pipeline._renew(pipeline._gang)
        assert (pipeline.made, pipeline._gang.renewed) == (2, 0), "what cannot be renewed is made anew"

    asyncio.run(play())


def test_who_leaves_before_the_session_has_begun_leaves_the_pipeline_in_order() -> None:
    async def play() -> None:
        pipeline = _Idle()
        events = pipeline.session(None)  # type: ignore[arg-type]
        first = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0.1)
        assert pipeline._gang.starting
        first.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await first
        await pipeline.drained()
        assert (pipeline.made, pipeline._gang.renewed, pipeline._busy) == (1, 1, False)

    asyncio.run(play())
