"""Texts to and from a room, none of which is lost or counted twice.

A LiveKit data channel drops what is sent while the server or the other side is away, or not quite back, and reports
nothing. So a message that must arrive has an id in its attribute ACK. A client that has read it returns the id as a
data packet on the topic of the same name; until then the message is sent again. To a client without such acks a
message is an ordinary text stream. The first message to it is sent a few times, because the silence may be a loss; the
others are sent once. A client that stops sending acks holds up one message: those after it are sent as they come, and
again beside the newer ones.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from actors.room.allowance import Allowance

log = logging.getLogger(__name__)

ACK = "characters.ack"
_SEND_SECONDS = 5.0
_AGAIN_SECONDS = 1.0  # without an ack, after which a message is sent again
_TRIES = 4  # of which one is acked, or else the client seems silent; a link that has just come back loses 3 s
_PATIENCE_SECONDS = 60.0  # a server that is away for longer has ended the session
_LOOK_SECONDS = 0.1
_WAITING = 200  # messages in the queue, from which on those that need not arrive are dropped; at twice as many, all
_LATE, _LATE_AT_ONCE = 50, 10  # messages that are sent again beside newer ones, and of those in `_AGAIN_SECONDS`
_READ_SECONDS = 10.0  # from the beginning of a message to its end
_OPEN, _OPEN_IN_ALL = 8, 32  # messages of one participant, and of all, that have begun and not ended
_LONGEST = 20_000  # characters of a message that are read
_REMEMBERED = 1000


@dataclass(frozen=True, slots=True)
class ReliableMessage:
    """A text to the room.

    Attributes:
        topic, text, attributes: of the text stream.
        sender: identity that it appears to come from; None for the character's own.
        certain: whether it must arrive.
    """

    topic: str
    text: str
    attributes: Mapping[str, str]
    sender: str | None = None
    certain: bool = False


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A message that must arrive, the id that acks it, and the time at which it is given up."""

    message: ReliableMessage
    key: str
    give_up: float


class Outbox:
    """Sends messages in order, one after another, while `run` runs. All methods belong to the room's event loop.

    Args:
        room: the SDK's.
    """

    def __init__(self, room: Any) -> None:
        from livekit import rtc

        self._room, self._connected = room, rtc.ConnectionState.CONN_CONNECTED
        self._queue: asyncio.Queue[_Waiting] = asyncio.Queue(2 * _WAITING)
        self._late: deque[_Waiting] = deque()
        self._open: dict[str, asyncio.Event] = {}  # id -> its ack has come
        self._confirming: set[str] = set()  # identities that send acks
        self._silent: set[str] = set()  # identities that seem to send none
        room.on("data_received", self._on_data)

    def put(self, message: ReliableMessage) -> None:
        """Queue a message. One that need not arrive is dropped if many wait; if very many do, any is."""
        if self._queue.full():
            log.warning("too many messages wait: one of %d characters is dropped", len(message.text))
        elif message.certain or self._queue.qsize() < _WAITING:
            give_up = time.monotonic() + _PATIENCE_SECONDS
            self._queue.put_nowait(_Waiting(message, secrets.token_hex(8), give_up))

    async def run(self) -> None:
        """Deliver, until cancelled."""
        late = asyncio.get_running_loop().create_task(self._deliver_late())
        try:
            while True:
                waiting = await self._queue.get()
                if waiting.message.certain:
                    await self._deliver(waiting)
                elif self._anybody():
                    await self._send(waiting)
        finally:
            late.cancel()

    async def _deliver(self, waiting: _Waiting) -> None:
        """Until it is acked, or all who are there are silent: to who once was not it is sent again beside the next."""
        received = self._open[waiting.key] = asyncio.Event()
        tries = 0
        while not received.is_set():
            if self._given_up(waiting):
                return
            if not self._anybody():
                await asyncio.sleep(_LOOK_SECONDS)
                continue
            left = await self._send(waiting)
            there = set(self._room.remote_participants)
            tries += left
            if not there <= self._silent or not left:
                await _happens(received, _AGAIN_SECONDS)
            if tries >= _TRIES and not received.is_set():
                self._silent |= there
            if left and there and there <= self._silent and not received.is_set():
                if there & self._confirming:
                    self._late.append(waiting)
                    if len(self._late) > _LATE:
                        self._give_up(self._late.popleft())
                    return
                break
        del self._open[waiting.key]

    async def _deliver_late(self) -> None:
        """Messages that nobody acked in time, until somebody does or they are given up."""
        while True:
            await asyncio.sleep(_AGAIN_SECONDS)
            for _ in range(min(len(self._late), _LATE_AT_ONCE)):
                waiting = self._late.popleft()
                if self._open[waiting.key].is_set():
                    del self._open[waiting.key]
                elif not self._given_up(waiting):
                    self._late.append(waiting)
                    if self._anybody():
                        await self._send(waiting)

    def _given_up(self, waiting: _Waiting) -> bool:
        """Whether the message has waited too long; if so it is forgotten."""
        if time.monotonic() <= waiting.give_up:
            return False
        self._give_up(waiting)
        return True

    def _give_up(self, waiting: _Waiting) -> None:
        del self._open[waiting.key]
        length = len(waiting.message.text)
        log.warning("nobody has confirmed message %s on %s (%d characters)", waiting.key, waiting.message.topic, length)

    async def _send(self, waiting: _Waiting) -> bool:
        """Whether the message has left; it may be lost all the same."""
        message = waiting.message
        attributes = {**message.attributes, ACK: waiting.key} if message.certain else dict(message.attributes)
        try:
            async with asyncio.timeout(_SEND_SECONDS):
                writer = await self._room.local_participant.stream_text(
                    topic=message.topic, attributes=attributes, sender_identity=message.sender
                )
                await writer.write(message.text)
                await writer.aclose()
        except Exception as error:  # whatever the SDK raises, the conversation goes on
            log.warning("cannot send to the room: %r", error)
            return False
        return True

    def _anybody(self) -> bool:
        return bool(self._room.connection_state == self._connected and self._room.remote_participants)

    def _on_data(self, packet: Any) -> None:
        if packet.topic != ACK or packet.participant is None:
            return
        if len(self._confirming) > _REMEMBERED:
            self._confirming.clear()
        self._confirming.add(packet.participant.identity)
        self._silent.discard(packet.participant.identity)
        if found := self._open.get(packet.data.decode(errors="replace")):
            found.set()


class Inbox:
    """Reads messages, acknowledges them, and drops those that have come before.

    Args:
        room: the SDK's.
    """

    def __init__(self, room: Any) -> None:
        self._room = room
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._acks: set[asyncio.Task[None]] = set()
        self._reading: Counter[str] = Counter()  # messages that have begun, by sender
        self._may_send = Allowance(burst=40, rate=10.0)

    async def read(self, reader: Any, identity: str | None = None) -> str | None:
        """The text of a message, cut at 20,000 characters; None if it broke off or has come before.

        Args:
            reader: of the SDK's text stream; it is closed.
            identity: of the sender, of whom too many messages are not read; None for one who is trusted.
        """
        sender = identity or ""
        if identity is not None and (
            self._reading[sender] >= _OPEN or self._reading.total() >= _OPEN_IN_ALL or not self._may_send.take(sender)
        ):
            reader.close()
            return None
        text = ""
        self._reading[sender] += 1
        try:
            async with asyncio.timeout(_READ_SECONDS):
                async for piece in reader:
                    text += piece
                    if len(text) > _LONGEST:
                        break
        except (ConnectionError, TimeoutError):
            return None
        finally:
            reader.close()  # or else the SDK goes on asking about every event whether it is this message's
            self._reading[sender] -= 1
            self._reading += Counter()  # drops senders without a message
        key = (reader.info.attributes or {}).get(ACK)
        if key is None:
            return text
        ack = asyncio.get_running_loop().create_task(self._confirm(key))
        self._acks.add(ack)
        ack.add_done_callback(self._acks.discard)
        known = key in self._seen
        self._seen[key] = None
        while len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)
        return None if known else text

    async def _confirm(self, key: str) -> None:
        try:
            async with asyncio.timeout(_SEND_SECONDS):
                await self._room.local_participant.publish_data(key, topic=ACK)
        except Exception as error:  # the message will come again, and is acknowledged then
            log.warning("cannot confirm a message: %r", error)


async def _happens(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, at most so long."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
