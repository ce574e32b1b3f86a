"""A conversation with participants who send anything: it tells its figures as before, and raises nothing."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.room import announcer
from actors.room.announcer import CAPTIONS, FIGURES, NOTICES
from actors.room.conversation import CHAT, RENDERED
from actors.room.reliable_text import ACK
from tests.actors.room.test_conversation import Stage
from tests.fuzzing import JSON, fuzz

TOPICS = [CHAT, RENDERED, ACK, FIGURES, NOTICES, CAPTIONS, "lk.agent.request", ""]
TEXTS = st.text(max_size=300) | st.sampled_from(
    ["m" * 40 + " what", "1+" * 2000, "(" * 3000, "\0", "\u202e" * 50, "x" * 9000]
)


class Stream:
    """A text stream: its attributes, its pieces, and whether it ends."""

    def __init__(self, attributes: dict[str, str], pieces: list[str], ends: bool) -> None:
        self.info = SimpleNamespace(attributes=attributes)
        self._pieces, self._ends = pieces, ends

    async def __aiter__(self) -> AsyncIterator[str]:
        for piece in self._pieces:
            yield piece
        if not self._ends:
            raise ConnectionError("the stream was cut off")

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def talk() -> Iterator[tuple[Stage, list[str]]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(announcer, "_FIGURES_SECONDS", 0.02)

        async def read(self: Any, track: Any) -> None:
            raise AssertionError("there are no microphones")

        patch.setattr("actors.room.microphone.Microphone._read", read)
        stage, raised = Stage(), list[str]()
        stage.loop.call_soon_threadsafe(
            stage.loop.set_exception_handler, lambda loop, context: raised.append(str(context.get("exception")))
        )
        stage.do(lambda: stage.room.join("ada"))
        yield stage, raised
        stage.conversation.close()
        stage.loop.call_soon_threadsafe(stage.loop.stop)


Message = Callable[[Stage], None]


def packets() -> st.SearchStrategy[Message]:
    who = st.none() | st.sampled_from(["ada", "eve", "character"]).map(lambda name: SimpleNamespace(identity=name))
    reports = JSON | st.lists(st.tuples(st.integers(), st.floats() | st.integers()), max_size=6)
    data = st.binary(max_size=80) | reports.map(lambda found: json.dumps(found).encode()) | st.just(b"[" * 3000)

    def send(topic: str, who: Any, data: bytes) -> Message:
        packet = SimpleNamespace(topic=topic, participant=who, data=data)
        return lambda stage: stage.room.emit("data_received", packet)

    return st.builds(send, st.sampled_from(TOPICS), who, data)


def streams() -> st.SearchStrategy[Message]:
    keys = st.sampled_from([ACK, "lk.segment_id", "lk.transcription_final"]) | st.text(max_size=9)
    attributes = st.dictionaries(keys, st.text(max_size=100), max_size=3)
    made = st.builds(Stream, attributes, st.lists(TEXTS, max_size=4), st.booleans())

    def send(stream: Stream, who: str) -> Message:
        return lambda stage: stage.room.handlers[CHAT](stream, who)

    return st.builds(send, made, st.sampled_from(["ada", "eve", "", "\0"]))


@fuzz(40)
@given(st.lists(packets() | streams(), min_size=1, max_size=12))
def test_anything_from_participants(talk: tuple[Stage, list[str]], messages: list[Message]) -> None:
    stage, raised = talk
    before = len(stage.room.figures)
    stage.do(*[lambda message=message: message(stage) for message in messages], wait=0.08)
    assert len(stage.room.figures) > before, "it has no figures to tell any more"
    assert not raised
    assert all(len(text) <= 4_000 for text in stage.model.seen)
    del stage.room.figures[:], stage.room.texts[:], stage.model.seen[:]
