"""An agent's avatar in a real LiveKit room, with a face that has no model."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import numpy as np
import pytest
from livekit import api

from actors.voice.resample import Resampler
from characters.chunk import SAMPLE_RATE
from deploy.load.user import User
from deploy.serving import livekit_server
from deploy.serving.settings import LivekitAccess, free_ports
from deploy.serving.tokens import user_token
from tests.actors.voice.sounds import say
from tests.deploy.agent_double import AGENT, AVATAR, AgentDouble, token
from tests.deploy.light import LightRoom

SECRET = "a secret of more than 32 characters"
LOADED = 0.1  # seconds that other work may add to a goal
Story = Callable[[AgentDouble, User, LightRoom], Awaitable[None]]
Tell = Callable[..., LightRoom]


@pytest.fixture(scope="module")
def access() -> Iterator[LivekitAccess]:
    port = free_ports(17920)
    made = LivekitAccess(f"ws://127.0.0.1:{port}", "key", SECRET, own=True, port=port)
    server = livekit_server.LivekitServer(made)
    yield made
    server.stop()


@pytest.fixture
def tell(access: LivekitAccess, request: pytest.FixtureRequest) -> Tell:
    """Runs a story with an agent, its avatar and a listener."""

    def run(story: Story, tells_start: bool = True, listener: bool = True) -> LightRoom:
        room = request.node.name

        async def play() -> LightRoom:
            agent, user = AgentDouble(tells_start), User()
            await agent.join(access, room)  # as always: the agent asks for its avatar
            mute = token(access, room, AVATAR)
            light = LightRoom(access, room, "bao", lambda character: None, (mute, AGENT))  # type: ignore[arg-type,return-value]
            await asyncio.to_thread(light.__enter__)
            try:
                if listener:
                    await user.join(access.url, user_token(access, room, "ada"), microphone=False)
                await agent.ready()
                await user.until(lambda: user.frames > 3 or not listener, "no picture")
                await story(agent, user, light)
            finally:
                await user.leave()
                await agent.room.disconnect()
                await asyncio.to_thread(light.__exit__, None, None, None)
            return light

        return asyncio.run(play())

    return run


def tone(seconds: float, rate: int = 16_000, pitch: float = 440.0) -> np.ndarray:
    return (0.3 * np.sin(2 * np.pi * pitch * np.arange(int(seconds * rate)) / rate)).astype(np.float32)


class Ear:
    """What the publisher hands to LiveKit, which is the last place where sound is exact."""

    def __init__(self, light: LightRoom) -> None:
        self.blocks: list[np.ndarray] = []
        room = light.publisher.room
        assert room is not None
        capture = room.capture_audio

        def note(pcm: np.ndarray) -> None:
            self.blocks.append(pcm.copy())
            capture(pcm)

        room.capture_audio = note  # type: ignore[method-assign]

    @property
    def pcm(self) -> np.ndarray:
        return np.concatenate(self.blocks)


def likeness(sent: np.ndarray, heard: np.ndarray) -> float:
    """Decibels of a sound over its difference to the same sound in `heard`, wherever that begins."""
    size = 1 << (len(sent) + len(heard)).bit_length()
    spectrum = np.fft.rfft(sent, size)
    lag = int(np.argmax(np.fft.irfft(np.fft.rfft(heard, size) * np.conj(spectrum), size)[: len(heard)]))
    best = -np.inf
    for part in np.arange(-1.0, 1.01, 0.05):  # of a sample
        turned = spectrum * np.exp(-2j * np.pi * np.fft.rfftfreq(size) * (lag + part))
        moved = np.fft.irfft(turned, size)[lag : lag + len(sent)]
        there = heard[lag : lag + len(sent)]
        best = max(best, 10 * np.log10((moved[: len(there)] ** 2).sum() / ((there - moved[: len(there)]) ** 2).sum()))
    return float(best)


@pytest.mark.parametrize(("rate", "channels"), [(16_000, 1), (24_000, 1), (44_100, 2), (8_000, 1)])
def test_a_segment_is_said_as_it_was_sent_and_told(
    tell: Tell, rate: int, channels: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beyond the encoder it is no longer the same wave: Opus turns the phase of low tones, whoever publishes."""
    speech = Resampler(24_000, rate).push(say("Hello there, how are you?", "hibari"))

    async def story(agent: AgentDouble, user: User, light: LightRoom) -> None:
        ear, began = Ear(light), time.monotonic()
        await agent.say(speech, rate, channels)
        told = await agent.done(1)
        assert set(told) == {"playback_position", "interrupted"} and told["interrupted"] is False
        assert told["playback_position"] == pytest.approx(len(speech) / rate, abs=1e-3)
        await asyncio.sleep(0.5)
        first, last = user.loud(began), user.quiet_since()
        assert first is not None and len(agent.started) == len(agent.finished) == 1
        equal = likeness(Resampler(rate, SAMPLE_RATE).push(np.float32(np.int16(speech * 32767)) / 32768), ear.pcm)
        with capsys.disabled():
            print(
                f"\n{rate} Hz: {equal:.0f} dB; first heard {first - began:.3f} s after it was sent; told of its start"
                f" {agent.started[0] - first:+.3f} s, of its end {agent.finished[0][0] - last:+.3f} s from that"
            )
        assert equal > 35
        assert agent.started[0] < first and agent.finished[0][0] > last - 0.4

    tell(story)


def test_an_interruption_is_silence_and_says_what_was_heard(tell: Tell, capsys: pytest.CaptureFixture[str]) -> None:
    silent: list[float] = []
    off: list[float] = []

    async def story(agent: AgentDouble, user: User, light: LightRoom) -> None:
        for turn in range(20):
            began = time.monotonic()
            await agent.say(tone(8.0))
            begin = await user.until(lambda began=began: user.loud(began, 0.05), "nothing is heard")
            await asyncio.sleep(0.3 + 0.033 * turn)
            asked = time.monotonic()
            assert await agent.clear() == "ok"
            told = await agent.done(turn + 1, 2.0)
            await asyncio.sleep(0.3)
            assert told["interrupted"] is True
            end = max(at + len(pcm) / SAMPLE_RATE for at, pcm in user.seen.sound if np.abs(pcm).max() > 0.05)
            silent.append(end - asked)
            sound = np.abs(user.heard(begin - 0.01))
            heard = 0.01 * (sound[: len(sound) // 240 * 240].reshape(-1, 240).max(1) > 0.05).sum()
            off.append(told["playback_position"] - heard)
        assert len(agent.finished) == 20

    tell(story)
    with capsys.disabled():
        late = np.percentile(silent, 95)
        print(
            f"\nsilent after {np.median(silent):.3f} s, p95 {late:.3f}; position off by {np.median(off):+.3f} s,"
            f" at most {np.abs(off).max():.3f}"
        )
    assert np.percentile(silent, 95) <= 0.25 + LOADED
    assert np.percentile(np.abs(off), 95) <= 0.06 + LOADED


def test_every_stream_is_finished_once(tell: Tell) -> None:
    async def story(agent: AgentDouble, user: User, light: LightRoom) -> None:
        for wrong in ("nonsense", "0", "10"):
            await agent.say(tone(0.1), wrong)  # type: ignore[arg-type]
        assert (await agent.done(3))["playback_position"] == 0.0, "what cannot be played is over at once"
        await (await agent.begin()).aclose()
        assert await agent.done(4) == {"playback_position": 0.0, "interrupted": False}
        assert await agent.clear() == "ok", "nothing is open"
        await agent.begin()
        await agent.clear()
        assert await agent.done(5) == {"playback_position": 0.0, "interrupted": True}, "before any sound"
        for _ in range(5):  # a burst, each while the one before may not be over
            await agent.say(tone(2.0), trailer=False)
            await asyncio.sleep(0.1)
            await agent.clear()
        await agent.done(10)
        for _ in range(2):  # two wait at once
            await agent.say(tone(0.3))
        assert [told["interrupted"] for _, told in agent.finished[8:]] == [True, True]
        assert (await agent.done(12))["playback_position"] == pytest.approx(0.3, abs=1e-3)
        await agent.say(tone(0.2), trailer=False)
        await agent.say(tone(0.2))  # its beginning ends the one before, whose trailer was lost
        assert (await agent.done(14))["playback_position"] == pytest.approx(0.2, abs=1e-3)
        one, other = await agent.begin(), await agent.begin()
        for _ in range(4):
            for stream in (one, other):
                await stream.write(np.int16(9000 * tone(0.1)).tobytes())
        await other.aclose()
        await one.aclose()
        told = await agent.done(16)
        assert [t["playback_position"] for _, t in agent.finished[14:]] == [pytest.approx(0.4, abs=1e-3)] * 2
        await asyncio.sleep(0.5)
        assert len(agent.finished) == 16 and told["interrupted"] is False

    tell(story, tells_start=False)


def test_a_lost_trailer_ends_after_ten_seconds(tell: Tell) -> None:
    async def story(agent: AgentDouble, user: User, light: LightRoom) -> None:
        began = time.monotonic()
        await agent.say(tone(0.5), trailer=False)
        told = await agent.done(1, 15.0)
        assert told == {"playback_position": pytest.approx(0.5, abs=1e-3), "interrupted": False}
        assert 9.5 < time.monotonic() - began < 12.0
        await agent.say(tone(0.2))
        await agent.done(2)

    tell(story, listener=False)


def test_an_answer_of_minutes_waits_its_turn(tell: Tell) -> None:
    """Five minutes come at once; the whole is heard in the soak test."""

    async def story(agent: AgentDouble, user: User, light: LightRoom) -> None:
        began = time.monotonic()
        await agent.say(np.tile(tone(1.0), 300))
        await user.until(lambda: user.loud(began), "nothing is heard")
        avatar = light.publisher.avatar
        assert avatar is not None and light.aligner.queued < 6 * SAMPLE_RATE
        await user.until(lambda: avatar._segments.open[0].seconds == 300, "the rest has not come", 20)
        await agent.clear()
        told = await agent.done(1)
        assert 0 < told["playback_position"] < time.monotonic() - began

    tell(story)


def test_only_the_agent_is_obeyed(tell: Tell, access: LivekitAccess, request: pytest.FixtureRequest) -> None:
    async def story(agent: AgentDouble, user: User, light: LightRoom) -> None:
        await agent.say(tone(1.0))
        await user.until(lambda: agent.started, "it does not begin")
        stranger = await user.room.local_participant.perform_rpc(
            destination_identity=AVATAR, method="lk.clear_buffer", payload=""
        )
        assert stranger == "reject"
        stream = await user.room.local_participant.stream_bytes(
            name="x",
            topic="lk.audio_stream",
            destination_identities=[AVATAR],
            attributes={"sample_rate": "16000", "num_channels": "1"},
        )
        await stream.write(bytes(32_000))
        await stream.aclose()
        await user.room.local_participant.publish_data(json.dumps({"type": "END_CALL"}))
        assert (await agent.done(1))["interrupted"] is False
        await asyncio.sleep(0.5)
        assert len(agent.finished) == 1 and not light.publisher.ended()
        face = agent.room.remote_participants[AVATAR]
        assert dict(face.attributes) == {"lk.publish_on_behalf": AGENT}, "the state is the agent's to tell"
        assert not user.seen.captions and not user.seen.figures and not user.seen.notices

    tell(story)


@pytest.mark.parametrize("way", ["END_CALL", "removed", "left", "deleted"])
def test_the_end_is_no_failure(tell: Tell, access: LivekitAccess, way: str, request: pytest.FixtureRequest) -> None:
    room = request.node.name

    async def story(agent: AgentDouble, user: User, light: LightRoom) -> None:
        await agent.say(tone(5.0))
        await user.until(lambda: agent.started, "it does not begin")
        began = time.monotonic()
        if way == "END_CALL":
            data = json.dumps({"type": "END_CALL"})
            await agent.room.local_participant.publish_data(data, destination_identities=[AVATAR])
        elif way == "left":
            await agent.room.disconnect()
        else:
            async with api.LiveKitAPI("http" + access.url[2:], access.key, access.secret) as server:
                if way == "removed":
                    await server.room.remove_participant(api.RoomParticipantIdentity(room=room, identity=AVATAR))
                else:
                    await server.room.delete_room(api.DeleteRoomRequest(room=room))
        await user.until(lambda: light.publisher.ended(), "it goes on", 10)
        assert time.monotonic() - began < 8
        await asyncio.sleep(0.5)
        assert AVATAR not in user.room.remote_participants
        assert light._thread.is_alive(), "the stage has not failed"

    tell(story)


def test_a_killed_agent_is_missed_within_ten_seconds(tell: Tell, access: LivekitAccess) -> None:
    async def story(agent: AgentDouble, user: User, light: LightRoom) -> None:
        avatar, calls = light.publisher.avatar, 0
        assert avatar is not None
        await user.until(lambda: avatar._met, "the agent is not seen")
        perform = avatar._room.local_participant.perform_rpc

        async def unanswered(**call: Any) -> str:
            nonlocal calls
            calls += 1
            await asyncio.sleep(7.0)
            return await perform(**call)

        await asyncio.sleep(3.0)
        assert not light.publisher.ended(), "an agent that says nothing is alive"
        avatar._room.local_participant.perform_rpc = unanswered  # type: ignore[method-assign]
        began = time.monotonic()
        await user.until(lambda: light.publisher.ended(), "it is not missed", 12)
        assert time.monotonic() - began < 10 and calls

    tell(story)


def test_a_new_process_finishes_what_was_open(tell: Tell) -> None:
    async def story(agent: AgentDouble, user: User, light: LightRoom) -> None:
        await agent.say(tone(5.0))
        await user.until(lambda: agent.started, "it does not begin")
        await asyncio.sleep(1.0)
        await asyncio.to_thread(light.reborn)
        told = await agent.done(1)
        assert told["interrupted"] is True and 0.3 < told["playback_position"] < 2.0
        await agent.ready()
        await agent.say(tone(0.5))
        assert await agent.done(2) == {"playback_position": pytest.approx(0.5, abs=1e-3), "interrupted": False}

    tell(story)
