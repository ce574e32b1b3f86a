"""Messages over a link that loses them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from livekit import rtc

from actors.room import reliable_text
from actors.room.reliable_text import ACK, Inbox, Outbox, ReliableMessage

CONNECTED = rtc.ConnectionState.CONN_CONNECTED
RECONNECTING = rtc.ConnectionState.CONN_RECONNECTING


class Reader:
    def __init__(self, text: str, attributes: dict[str, str], broken: bool = False) -> None:
        self.info = SimpleNamespace(attributes=attributes)
        self._text, self._broken, self.closed = text, broken, False

    async def __aiter__(self) -> AsyncIterator[str]:
        yield self._text
        if self._broken:
            raise ConnectionError("the stream was cut")

    def close(self) -> None:
        self.closed = True


class Room:
    """One end of a link. `losses`: so many texts are lost before one gets through; `other` reads what does."""

    def __init__(self) -> None:
        self.connection_state = CONNECTED
        self.remote_participants: dict[str, Any] = {"ada": object()}
        self.local_participant = self
        self.losses = 0
        self.sent: list[tuple[str, dict[str, str]]] = []
        self.acks: list[str] = []
        self.read: Callable[[Reader], Any] = lambda reader: None
        self._on_data: Callable[[Any], None] = lambda packet: None

    def on(self, event: str, callback: Callable[[Any], None]) -> None:
        assert event == "data_received"
        self._on_data = callback

    async def stream_text(self, topic: str, attributes: dict[str, str], sender_identity: str | None) -> Any:
        async def write(text: str) -> None:
            self.sent.append((text, attributes))
            if self.losses:
                self.losses -= 1
            else:
                self.read(Reader(text, attributes))

        async def close() -> None:
            pass

        return SimpleNamespace(write=write, aclose=close)

    async def publish_data(self, data: str, topic: str) -> None:
        assert topic == ACK
        self.acks.append(data)

    def confirm(self, key: str, identity: str = "ada") -> None:
        packet = SimpleNamespace(topic=ACK, data=key.encode(), participant=SimpleNamespace(identity=identity))
        self._on_data(packet)

    def confirm_all(self) -> None:
        self.read = lambda reader: self.confirm(reader.info.attributes.get(ACK, ""))


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reliable_text, "_AGAIN_SECONDS", 0.02)
    monkeypatch.setattr(reliable_text, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(reliable_text, "_PATIENCE_SECONDS", 1.0)


def play(
    room: Room, *posted: ReliableMessage, seconds: float = 0.3, later: Callable[[], None] = lambda: None
) -> list[str]:
    """Texts that left, in order; `later` happens half-way."""

    async def run() -> None:
        outbox = Outbox(room)
        for message in posted:
            outbox.put(message)
        task = asyncio.create_task(outbox.run())
        await asyncio.sleep(seconds / 2)
        later()
        await asyncio.sleep(seconds / 2)
        task.cancel()

    asyncio.run(run())
    return [text for text, _ in room.sent]


def message(text: str, certain: bool = True) -> ReliableMessage:
    return ReliableMessage("topic", text, {"a": "b"}, certain=certain)


def test_a_lost_message_is_sent_again_until_it_is_confirmed_and_the_next_waits_for_it() -> None:
    room = Room()
    room.confirm_all()

    async def run() -> None:
        outbox = Outbox(room)
        outbox.put(message("first"))
        task = asyncio.create_task(outbox.run())
        await asyncio.sleep(0.05)
        room.losses = 3
        outbox.put(message("second"))
        outbox.put(message("third", certain=False))
        await asyncio.sleep(0.3)
        task.cancel()

    asyncio.run(run())
    assert [text for text, _ in room.sent] == ["first", "second", "second", "second", "second", "third"]
    keys = {attributes[ACK] for text, attributes in room.sent if text == "second"}
    assert len(keys) == 1 and ACK not in room.sent[-1][1]
    assert all(attributes["a"] == "b" for _, attributes in room.sent)


def test_who_knows_nothing_of_receipts_gets_one_message_a_few_times_and_others_once() -> None:
    assert play(Room(), message("one"), message("two"), message("three")) == [
        *["one"] * reliable_text._TRIES,
        "two",
        "three",
    ]


def test_a_first_message_that_is_lost_comes_again() -> None:
    room = Room()
    room.confirm_all()
    room.losses = reliable_text._TRIES - 1
    assert play(room, message("one"), message("two")) == [*["one"] * reliable_text._TRIES, "two"]


def test_who_confirms_after_all_is_trusted_again() -> None:
    room = Room()

    async def run() -> None:
        outbox = Outbox(room)
        outbox.put(message("one"))
        task = asyncio.create_task(outbox.run())
        await asyncio.sleep(0.2)
        room.confirm("anything")
        room.losses = 2
        room.confirm_all()
        outbox.put(message("two"))
        await asyncio.sleep(0.2)
        task.cancel()

    asyncio.run(run())
    assert [text for text, _ in room.sent].count("two") == 3


@pytest.mark.parametrize("away", ["nobody", "disconnected"])
def test_a_message_waits_for_somebody_to_be_there_and_others_are_dropped(away: str) -> None:
    room = Room()
    there = room.remote_participants

    def gone() -> None:
        room.remote_participants = {} if away == "nobody" else there
        room.connection_state = CONNECTED if away == "nobody" else RECONNECTING

    def back() -> None:
        assert not room.sent
        room.remote_participants, room.connection_state = there, CONNECTED
        room.confirm_all()

    gone()
    assert play(room, message("passing", certain=False), message("lasting"), later=back) == ["lasting"]


def test_what_nobody_confirms_does_not_hold_up_the_rest_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reliable_text, "_PATIENCE_SECONDS", 0.1)
    room = Room()

    async def run() -> None:
        outbox = Outbox(room)
        room.confirm("anything")  # ada confirms, but not what comes
        outbox.put(message("one"))
        outbox.put(message("two", certain=False))
        task = asyncio.create_task(outbox.run())
        await asyncio.sleep(0.4)
        task.cancel()

    asyncio.run(run())
    texts = [text for text, _ in room.sent]
    assert texts[: reliable_text._TRIES] == ["one"] * reliable_text._TRIES and "two" in texts
    assert texts[-1] in ("one", "two") and texts.count("one") <= 2 * reliable_text._TRIES, "it is given up"


def test_a_message_that_comes_twice_is_read_once_and_confirmed_twice() -> None:
    room = Room()

    async def run() -> list[str | None]:
        inbox = Inbox(room)
        marked = {ACK: "key"}
        readers = [Reader("hello", marked, broken=True), Reader("hello", marked), Reader("hello", marked)]
        found = [await inbox.read(reader) for reader in [*readers, Reader("plain", {})]]
        await asyncio.sleep(0)
        return found

    assert asyncio.run(run()) == [None, "hello", None, "plain"]
    assert room.acks == ["key", "key"]


def test_of_a_very_long_message_the_beginning_is_read() -> None:
    async def run() -> str | None:
        return await Inbox(Room()).read(Reader("x" * 30_000, {}))

    assert set(asyncio.run(run()) or "") == {"x"}


def test_a_client_that_stops_confirming_holds_up_one_message_and_gets_those_it_missed() -> None:
    room = Room()

    async def run() -> float:
        outbox = Outbox(room)
        task = asyncio.create_task(outbox.run())
        room.confirm("anything")  # one ack, and then none
        begin = time.monotonic()
        for number in range(20):
            outbox.put(message(f"{number}"))
        while "19" not in [text for text, _ in room.sent]:
            await asyncio.sleep(0.005)
        waited = time.monotonic() - begin
        room.confirm_all()
        await asyncio.sleep(0.2)
        before = len(room.sent)
        outbox.put(message("next"))
        await asyncio.sleep(0.1)
        task.cancel()
        assert [text for text, _ in room.sent[before:]] == ["next"], "what was confirmed late is not sent again"
        assert not outbox._open and not outbox._late
        return waited

    assert asyncio.run(run()) < 10 * reliable_text._AGAIN_SECONDS


def test_messages_that_must_arrive_wait_in_bounded_number(caplog: pytest.LogCaptureFixture) -> None:
    room = Room()
    room.remote_participants = {}
    outbox = Outbox(room)
    for _ in range(10_000):
        outbox.put(message("a secret"))
    assert outbox._queue.qsize() <= 1000
    assert "too many messages wait" in caplog.text and "secret" not in caplog.text


def test_what_is_given_up_is_not_written_into_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reliable_text, "_PATIENCE_SECONDS", 0.05)
    room = Room()
    room.remote_participants = {}
    play(room, message("a secret"))
    assert "nobody has confirmed" in caplog.text and "8 characters" in caplog.text and "secret" not in caplog.text


class Endless(Reader):
    """A text that begins and never ends."""

    async def __aiter__(self) -> AsyncIterator[str]:
        yield "a"
        await asyncio.Event().wait()


def test_of_texts_that_never_end_few_are_open_and_not_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reliable_text, "_READ_SECONDS", 0.1)

    async def run() -> None:
        inbox = Inbox(Room())
        readers = [Endless("", {}) for _ in range(300)]
        tasks = [asyncio.create_task(inbox.read(reader, f"user-{i % 10}")) for i, reader in enumerate(readers)]
        await asyncio.sleep(0.02)
        assert sum(not reader.closed for reader in readers) <= reliable_text._OPEN_IN_ALL
        assert await asyncio.gather(*tasks) == [None] * 300
        assert all(reader.closed for reader in readers) and not inbox._reading
        assert await inbox.read(Reader("hello", {}), "ada") == "hello"
        one = [Endless("", {}) for _ in range(30)]
        tasks = [asyncio.create_task(inbox.read(reader, "eve")) for reader in one]
        await asyncio.sleep(0.02)
        assert sum(not reader.closed for reader in one) == reliable_text._OPEN
        assert await inbox.read(Reader("hello", {}), "ada") == "hello", "one does not take another's place"

    asyncio.run(run())
