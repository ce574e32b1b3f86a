"""A conversation in a room of stand-ins: what its participants can do to it."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from livekit import rtc

from actors.pipeline.context import StageContext
from actors.pipeline.header import Header
from actors.room import announcer, conversation
from actors.room.announcer import FIGURES, HEARS, NOTICES
from actors.room.conversation import CHAT, RENDERED, Conversation
from actors.room.reliable_text import ACK
from actors.voice.config import VoiceConfig
from actors.voice.events import ReplyAudio, VoiceError
from actors.voice.parts import Parts
from actors.voice.protocols import Transcript
from actors.voice.tts import Clause
from characters.character import Character
from characters.chunk import Clock
from tests.actors.room.test_microphone import Room


class Reader:
    def __init__(self, text: str) -> None:
        self.info = SimpleNamespace(attributes={})
        self._text = text

    async def __aiter__(self) -> AsyncIterator[str]:
        yield self._text

    def close(self) -> None:
        pass


class TalkRoom(Room):
    """Keeps what the character sends."""

    def __init__(self) -> None:
        super().__init__()
        self.connection_state = rtc.ConnectionState.CONN_CONNECTED
        self.local_participant = self
        self.attributes: dict[str, str] = {}
        self.figures: list[dict[str, Any]] = []
        self.texts: list[tuple[str, str]] = []
        self.handlers: dict[str, Callable[[Any, str], Any]] = {}

    def register_text_stream_handler(self, topic: str, handler: Callable[[Any, str], Any]) -> None:
        self.handlers[topic] = handler

    def register_rpc_method(self, method: str, handler: Any) -> None:
        pass

    async def set_attributes(self, attributes: dict[str, str]) -> None:
        self.attributes |= attributes

    async def publish_data(self, data: str, *, topic: str, reliable: bool = True) -> None:
        if topic == FIGURES:
            self.figures.append(json.loads(data))

    async def stream_text(self, *, topic: str, attributes: dict[str, str], sender_identity: str | None) -> Any:
        async def write(text: str) -> None:
            self.texts.append((topic, text))
            who = SimpleNamespace(identity="ada")
            key = attributes.get(ACK, "").encode()
            self.emit("data_received", SimpleNamespace(topic=ACK, participant=who, data=key))

        async def close() -> None:
            pass

        return SimpleNamespace(write=write, aclose=close)


class Model:
    """Notes what it is asked; an answer takes for ever."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    async def warm(self) -> None: ...

    async def stream(self, messages: Any, tools: Any = ()) -> AsyncIterator[str]:
        self.seen.append(messages[-1].text)
        await asyncio.Event().wait()
        yield ""


class Stage:
    """A conversation with its loop, in which `do` does something."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.room, self.model, self.reported = TalkRoom(), Model(), list[int]()
        parts = Parts(
            activity=SimpleNamespace(probability=lambda pcm: 0.0, reset=lambda: None),  # type: ignore[arg-type]
            end_of_turn=None,
            stt=SimpleNamespace(transcribe=lambda pcm: Transcript("")),  # type: ignore[arg-type]
            model=self.model,  # type: ignore[arg-type]
            speaker=SimpleNamespace(say=lambda text: Clause(text, np.zeros(10, np.float32), ())),  # type: ignore[arg-type]
        )
        self.conversation = Conversation(
            Character("Ann", "p.png"),
            parts,
            VoiceConfig(),
            SimpleNamespace(room=self.room, loop=self.loop),  # type: ignore[arg-type]
            SimpleNamespace(push=lambda *_: None),  # type: ignore[arg-type]
            StageContext(lambda _: None, lambda _: None, self._record),
            lambda: 0,
            clock=Clock(),
        )

    def _record(self, frame: int, at: float) -> float | None:
        self.reported.append(frame)
        return 0.01 if abs(at - time.monotonic()) < 60 else None

    def do(self, *work: Callable[[], Any], wait: float = 0.1) -> None:
        async def all_of_it() -> None:
            for piece in work:
                piece()
                await asyncio.sleep(0.002)
            await asyncio.sleep(wait)
            await self.room.settle()

        asyncio.run_coroutine_threadsafe(all_of_it(), self.loop).result(20)

    def write(self, text: str, identity: str = "ada") -> None:
        self.room.handlers[CHAT](Reader(text), identity)

    def report(self, data: bytes, identity: str = "ada") -> None:
        who = SimpleNamespace(identity=identity)
        self.room.emit("data_received", SimpleNamespace(topic=RENDERED, participant=who, data=data))

    def notices(self) -> list[str]:
        return [text for topic, text in self.room.texts if topic == NOTICES]


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.setattr(announcer, "_FIGURES_SECONDS", 0.05)

    async def read(self: Any, track: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("actors.room.microphone.Microphone._read", read)
    made = Stage()
    yield made
    made.conversation.close()
    made.loop.call_soon_threadsafe(made.loop.stop)


def test_lines_that_come_faster_than_they_can_be_read_are_refused_and_the_user_is_told(stage: Stage) -> None:
    stage.do(lambda: stage.room.join("ada"), *[lambda: stage.write("x" * 10_000)] * 30)
    assert len(stage.model.seen) <= 9 and all(len(text) <= 4_000 for text in stage.model.seen)
    assert set(stage.notices()) == {conversation._TOO_FAST}
    stage.do(lambda: stage.write("hello", "bob"))
    assert stage.model.seen[-1].endswith("hello"), "another may write"


@pytest.mark.parametrize("report", [b"[[0, NaN]]", b"[[0, Infinity]]", b"[[0, 1e300]]", b"[[1e999, 0]]", b"[[NaN, 1]]"])
def test_no_report_of_frames_ends_the_figures(stage: Stage, report: bytes) -> None:
    stage.do(lambda: stage.room.join("ada"), lambda: stage.report(report), wait=0.15)
    before = len(stage.room.figures)
    stage.do(lambda: stage.report(b"[[0, 1]]"), wait=0.2)
    assert len(stage.room.figures) >= before + 2 and stage.room.figures[-1]["publish_to_render_ms"] == 10


def test_figures_that_cannot_be_made_are_left_out_and_the_next_come(stage: Stage) -> None:
    def spoil() -> None:
        stage.conversation._figures.render = float("nan")

    stage.do(spoil, wait=0.15)
    before = len(stage.room.figures)
    stage.do(lambda: stage.report(b"[[0, 1]]"), wait=0.2)
    assert len(stage.room.figures) > before


def test_reports_of_frames_are_read_at_a_rate(stage: Stage) -> None:
    stage.do(lambda: [stage.report(b"[[0, 1]]") for _ in range(4732)])
    assert len(stage.reported) < 20


def test_the_room_is_told_who_is_heard(stage: Stage) -> None:
    stage.do(lambda: stage.room.join("ada", "A1").__setattr__("name", "Ada"))
    stage.do()
    assert stage.room.attributes[HEARS] == "ada" and not stage.notices()
    stage.do(lambda: stage.room.join("bob", "B1").__setattr__("name", "Bob"))
    stage.do()
    assert stage.room.attributes[HEARS] == "ada" and "Ada" in stage.notices()[-1]
    stage.do(lambda: stage.room.leave("ada"))
    stage.do()
    assert stage.room.attributes[HEARS] == "bob" and "Bob" in stage.notices()[-1]


@pytest.mark.parametrize("part", ["stt", "tts", "reply", "turn", "another"])
def test_what_a_server_says_of_its_errors_is_for_the_log(
    stage: Stage, part: str, caplog: pytest.LogCaptureFixture
) -> None:
    error = VoiceError(part, "401 from http://10.0.0.7:8000/v1: key sk-secret is wrong")
    stage.do(lambda: stage.room.join("ada"), *[lambda: stage.conversation._on_event(error)] * 5)
    assert len(stage.notices()) == 1 and stage.notices()[0].startswith("The character")
    assert all(word not in stage.notices()[0] for word in ("10.0.0.7", "secret", "401"))
    assert "10.0.0.7" in caplog.text


def test_a_published_chunk_counts(stage: Stage) -> None:
    stage.conversation.published(Header(0, 0).stamped(0, 1, 2).stamped(1, 2, 2.5).stamped(2, 3, 4), 3)
    stage.do(wait=0.2)
    assert any(figures["chunk_ms"] == 500.0 for figures in stage.room.figures)


def test_a_face_that_stands_still_does_not_speak(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hanging process is not heard of through Ray for long; the room sees that no picture comes."""
    monkeypatch.setattr(conversation, "_STILL_SECONDS", 0.3)
    header = Header(0, 1).stamped(1, 1.0, 1.05)

    def state() -> str:
        return stage.room.attributes["lk.agent.state"]

    stage.do(lambda: stage.room.join("ada"), lambda: stage.conversation.published(header, 3))
    stage.do(lambda: stage.conversation._on_event(ReplyAudio(1, np.zeros(10, np.float32), "a", (), 0)))
    assert state() == "speaking"
    stage.do(wait=0.8)
    assert state() == "initializing"
    assert [text for text in stage.notices() if "stands still" in text]
    stage.do(lambda: stage.conversation.published(header, 3))
    assert state() == "speaking"
    stage.do(stage.conversation.interrupted)
    assert state() == "initializing", "a process was replaced, and no picture has come since"
    assert [text for text in stage.notices() if "started again" in text]
    stage.do(lambda: stage.conversation.published(header, 3))
    assert state() == "speaking"
