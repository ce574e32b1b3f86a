"""Unmodified clients of other people's APIs against the real ingress and the real LiveKit server.

They are installed in environments of their own by `tests/run`: LiveKit's agents want another version of its client.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
import time
import wave
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from actors.voice.resample import Resampler
from characters.chunk import SAMPLE_RATE
from deploy.load.user import User
from deploy.serving.livekit_server import LivekitServer
from deploy.serving.sessions import State
from deploy.serving.settings import LivekitAccess, free_ports
from deploy.serving.tokens import user_token
from tests.actors.voice.sounds import say
from tests.deploy.browser.site import Site, open_site
from tests.deploy.conftest import Application, processes, wait_for
from tests.deploy.light import LightPipelines
from tests.deploy.test_avatar import LOADED, Ear, likeness

ROOT = Path(__file__).resolve().parents[2]
AGENTS = Path(os.environ.get("CHARACTERS_AGENTS", ROOT / ".venv-agents"))
KEY = "a key of ours"
# What each plugin needs to be pointed here: its own variables and nothing else.
POINTERS = {
    "runway": {"RUNWAYML_BASE_URL": "", "RUNWAYML_API_SECRET": KEY},
    "bithuman": {"BITHUMAN_API_URL": "/v1/bithuman", "BITHUMAN_API_SECRET": KEY},
    "anam": {"ANAM_API_URL": "", "ANAM_API_KEY": KEY},
    "keyframe": {"KEYFRAME_API_URL": "", "KEYFRAME_API_KEY": KEY},
    "inference": {"LIVEKIT_INFERENCE_URL": ""},
}
IDENTITY = {"runway": "runway-avatar-agent"}


class Agent:
    """The program of `tests.deploy.agents.agent`; calls block."""

    def __init__(
        self, site: Site, room: str, plugin: str = "runway", access: LivekitAccess | None = None, **environment: str
    ) -> None:
        pointers = {name: site.url + value if "URL" in name else value for name, value in POINTERS[plugin].items()}
        where = access or site.access
        livekit = {"LIVEKIT_URL": where.url, "LIVEKIT_API_KEY": where.key, "LIVEKIT_API_SECRET": where.secret}
        self.process = subprocess.Popen(
            [AGENTS / "bin/python", ROOT / "tests/deploy/agents/agent.py", room, plugin],
            env=os.environ | livekit | pointers | environment | {"PYTHONPATH": ""},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
        )
        self.finished: list[dict[str, Any]] = []

    def do(self, what: str, **more: Any) -> dict[str, Any]:
        """Do it, and wait for the answer."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps({"do": what} | more) + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            found: dict[str, Any] = json.loads(line)
            if "event" not in found:
                return found
            self.finished.append(found)
        raise AssertionError(f"the agent has ended instead of doing {what}")

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    assert (AGENTS / "bin/python").exists(), "tests/run installs LiveKit's agents"
    with open_site(1, cast=LightPipelines(1, lambda character: None), api_key=KEY) as site:  # type: ignore[arg-type,return-value]
        yield site


Story = Callable[[Agent, User, Site], Awaitable[None]]


def ended(site: Site) -> bool:
    """No session runs, and none holds a pipeline."""
    return not any(session.seated or not session.over for session in site.manager.sessions.all())


def play(site: Site, room: str, story: Story, plugin: str = "runway") -> None:
    """A story with an agent that has its avatar, and a listener."""

    async def run() -> None:
        user = User()
        with Agent(site, room, plugin) as agent:
            await user.join(site.access.url, user_token(site.access, room, "ada"), microphone=False)
            try:
                started = await asyncio.to_thread(agent.do, "start")
                assert started.get("done") == "start", started
                await user.until(lambda: user.frames > 3, "no picture")
                await story(agent, user, site)
            finally:
                await user.leave()

    asyncio.run(run())


def write(path: Path, pcm: np.ndarray, rate: int = SAMPLE_RATE) -> str:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((np.clip(pcm, -1, 1) * 32767).astype("<i2").tobytes())
    return str(path)


def test_twenty_answers_in_a_row_are_heard_as_they_were_sent(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sent = Resampler(SAMPLE_RATE, 16_000).push(say("Yes, I think so.", "hibari"))
    wav = write(tmp_path / "speech.wav", sent, 16_000)  # as the plugin sends it: nothing on the way changes it
    speech = Resampler(16_000, SAMPLE_RATE).push(sent)

    async def story(agent: Agent, user: User, site: Site) -> None:
        ear, began = Ear(site.cast.rooms[0]), time.monotonic()
        for number in range(20):
            said = await asyncio.to_thread(agent.do, "say", wav=wav)
            assert said.get("interrupted") is False, (number, said)
        took = time.monotonic() - began
        assert len(agent.finished) == 20
        off = [told["position"] - len(speech) / SAMPLE_RATE for told in agent.finished]
        equal = likeness(speech, ear.pcm)
        with capsys.disabled():
            print(
                f"\n20 answers of {len(speech) / SAMPLE_RATE:.2f} s in {took:.1f} s: {equal:.0f} dB, positions off"
                f" by {np.abs(off).max():.3f} s at most"
            )
        assert equal > 35 and np.abs(off).max() < 0.06
        closed = await asyncio.to_thread(agent.do, "close")
        assert closed.get("done") == "close", closed
        await user.until(lambda: ended(site), "the session goes on", 10)
        (session,) = [s for s in site.manager.sessions.all() if s.external and s.external.room == "twenty"]
        assert (session.state, session.failure) == (State.COMPLETED, None)
        assert IDENTITY["runway"] not in user.room.remote_participants

    play(site, "twenty", story)


def test_twenty_interruptions_are_silence_and_say_what_was_heard(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tone = 0.3 * np.sin(2 * np.pi * 440 * np.arange(6 * SAMPLE_RATE) / SAMPLE_RATE)
    wav = write(tmp_path / "tone.wav", tone)
    silent: list[float] = []
    off: list[float] = []

    async def story(agent: Agent, user: User, site: Site) -> None:
        for turn in range(20):
            began = time.monotonic()
            await asyncio.to_thread(agent.do, "say", wav=wav, wait=False)
            begin = await user.until(lambda began=began: user.loud(began, 0.05), "nothing is heard")
            await asyncio.sleep(0.3 + 0.033 * turn)
            told = await asyncio.to_thread(agent.do, "interrupt")
            assert told.get("done") == "interrupt", told
            await asyncio.sleep(0.3)
            end = max(at + len(pcm) / SAMPLE_RATE for at, pcm in user.seen.sound if np.abs(pcm).max() > 0.05)
            silent.append(end - told["asked"])  # one machine, one clock
            sound = np.abs(user.heard(begin - 0.01))
            heard = 0.01 * (sound[: len(sound) // 240 * 240].reshape(-1, 240).max(1) > 0.05).sum()
            assert len(agent.finished) == turn + 1 and agent.finished[turn]["interrupted"]
            off.append(agent.finished[turn]["position"] - heard)
        await asyncio.to_thread(agent.do, "close")
        await user.until(lambda: ended(site), "the session goes on", 10)

    play(site, "interrupted", story)
    late, error = np.percentile(silent, 95), np.percentile(np.abs(off), 95)
    with capsys.disabled():
        print(
            f"\nsilent after {np.median(silent):.3f} s, p95 {late:.3f}; position off by {np.median(off):+.3f} s,"
            f" p95 {error:.3f}"
        )
    assert late <= 0.25 + LOADED and error <= 0.06 + LOADED


def test_a_killed_agent_is_missed_within_ten_seconds(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    async def story(agent: Agent, user: User, site: Site) -> None:
        await asyncio.sleep(1.0)
        agent.process.kill()
        began = time.monotonic()
        await user.until(lambda: IDENTITY["runway"] not in user.room.remote_participants, "it stays", 15)
        took = time.monotonic() - began
        with capsys.disabled():
            print(f"\ngone after {took:.1f} s")
        assert took < 10
        await user.until(lambda: ended(site), "the session goes on", 5)

    play(site, "killed", story)


def test_sessions_follow_one_another(site: Site, tmp_path: Path) -> None:
    """Five; the soak test has twenty."""
    wav = write(tmp_path / "speech.wav", say("Yes.", "hibari"))

    async def story(agent: Agent, user: User, site: Site) -> None:
        assert (await asyncio.to_thread(agent.do, "say", wav=wav)).get("interrupted") is False
        await asyncio.to_thread(agent.do, "close")
        await user.until(lambda: ended(site), "the session goes on", 10)

    for number in range(5):
        play(site, f"session-{number}", story)


@pytest.mark.parametrize("plugin", ["bithuman", "anam", "keyframe", "inference"])
def test_other_plugins_start_say_interrupt_and_end(site: Site, tmp_path: Path, plugin: str) -> None:
    speech = say("Yes, I think so.", "hibari")
    wav = write(tmp_path / "speech.wav", speech)

    async def story(agent: Agent, user: User, site: Site) -> None:
        said = await asyncio.to_thread(agent.do, "say", wav=wav)
        assert said.get("interrupted") is False, said
        assert agent.finished[0]["position"] == pytest.approx(len(speech) / SAMPLE_RATE, abs=0.06)
        began = time.monotonic()
        await asyncio.to_thread(agent.do, "say", wav=wav, repeat=10, wait=False)
        await user.until(lambda: user.loud(began, 0.05), "nothing is heard")
        told = await asyncio.to_thread(agent.do, "interrupt")
        assert told.get("done") == "interrupt", told
        assert agent.finished[1]["interrupted"] and 0 < agent.finished[1]["position"] < 10
        await asyncio.to_thread(agent.do, "close")
        await user.until(lambda: ended(site), "the session goes on", 10)
        session = site.manager.sessions.all()[-1]
        assert (session.dialect, session.state, session.failure) == (plugin, State.COMPLETED, None)

    play(site, plugin, story, plugin)


def test_what_a_wrong_order_is_told(site: Site) -> None:
    with Agent(site, "wrong", RUNWAYML_API_SECRET="another") as agent:
        failed = agent.do("start")
        assert failed["failed"] == "APIStatusError" and "401" in failed["message"], failed
    with Agent(site, "wrong", PRESET="nobody") as agent:
        failed = agent.do("start")
        assert failed["failed"] == "APIStatusError" and "Avatar not found" in failed["message"], failed
    assert ended(site)


def test_the_real_face_speaks_in_a_room_of_another_server(
    application: Application, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole application, and a LiveKit server that is not its own."""
    port = free_ports(17960)
    access = LivekitAccess(f"ws://127.0.0.1:{port}", "theirs", "t" * 32, own=True, port=port)
    server = LivekitServer(access)
    wav = write(tmp_path / "speech.wav", say("Every morning I open all of the windows and sing.", "hibari"))
    mouth: deque[tuple[float, np.ndarray]] = deque(maxlen=2000)

    def look(at: float, i420: np.ndarray) -> None:
        mouth.append((at, i420[150:200, 60:116].astype(np.float32)))

    def motion(since: float, until: float) -> float:
        seen = [picture for at, picture in mouth if since <= at <= until]
        return float(np.mean([np.abs(b - a).mean() for a, b in itertools.pairwise(seen)]))

    async def story() -> None:
        user = User(look)
        await user.join(access.url, user_token(access, "theirs", "ada"), microphone=False)
        with Agent(SimpleNamespace(url=application.address), "theirs", access=access) as agent:  # type: ignore[arg-type]
            asked = time.monotonic()
            started = await asyncio.to_thread(agent.do, "start")
            assert started.get("done") == "start", started
            joined = time.monotonic() - asked
            await user.until(lambda: user.frames > 10, "no picture", 60)
            said = await asyncio.to_thread(agent.do, "say", wav=wav, timeout=60)
            assert said.get("interrupted") is False, said
            begin, end = user.loud(0.0), user.quiet_since()
            await asyncio.sleep(3.0)
            speaking, resting = motion(begin or 0.0, end), motion(end + 1.0, end + 3.0)
            with capsys.disabled():
                print(f"\njoined after {joined:.1f} s; mouth moves by {speaking:.2f}, at rest by {resting:.2f}")
            assert speaking > 2 * resting
            stages = set(processes("ray::Stage"))
            await asyncio.to_thread(agent.do, "close")
        await user.until(lambda: not user.room.remote_participants, "the avatar stays", 10)
        await user.leave()
        healthy = lambda: application.request("GET", "/healthz")["running"] == 0  # noqa: E731
        await asyncio.to_thread(wait_for, healthy, "the session goes on", 30)
        kept = lambda: len(stages & set(processes("ray::Stage"))) >= 2  # noqa: E731
        await asyncio.to_thread(wait_for, kept, "the model was loaded again", 60)

    try:
        asyncio.run(story())
    finally:
        server.stop()
