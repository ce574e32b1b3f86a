"""Texts to and from a room, none of which is lost or counted twice.

A LiveKit data channel drops what is sent while the server or the other side is away, or not quite back, and reports
nothing. So a message that must arrive has an id in its attribute ACK. A client that has read it returns the id as a
data packet on the topic of the same name; until then the message is sent again. To a client without such acks a
message is an ordinary text stream. The first message to it is sent a few times, because the silence may be a loss; the
others are sent once.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

log = logging.getLogger(__name__)

ACK = "characters.ack"
_SEND_SECONDS = 5.0
_AGAIN_SECONDS = 1.0  # without an ack, after which a message is sent again
_TRIES = 4  # to a client that has never sent an ack; a link that has just come back loses messages for 3 s
_PATIENCE_SECONDS = 60.0  # a server that is away for longer has ended the session
_LOOK_SECONDS = 0.1
_WAITING = 200  # messages in the queue, from which on those that need not arrive are dropped
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


class Outbox:
    """Sends messages in order, one after another, while `run` runs. All methods belong to the room's event loop.

    Args:
        room: the SDK's.
    """

    def __init__(self, room: Any) -> None:
        from livekit import rtc

        self._room, self._connected = room, rtc.ConnectionState.CONN_CONNECTED
        self._queue: asyncio.Queue[ReliableMessage] = asyncio.Queue()
        self._open: dict[str, asyncio.Event] = {}  # id -> its ack has come
        self._confirming: set[str] = set()  # identities that send acks
        self._silent: set[str] = set()  # identities that seem to send none
        room.on("data_received", self._on_data)

    def put(self, message: ReliableMessage) -> None:
        """Queue a message. One that need not arrive is dropped if too many wait."""
        if message.certain or self._queue.qsize() < _WAITING:
            self._queue.put_nowait(message)

    async def run(self) -> None:
        """Deliver, until cancelled."""
        while True:
            message = await self._queue.get()
            if message.certain:
                await self._deliver(message)
            elif self._anybody():
                await self._send(message, message.attributes)

    async def _deliver(self, message: ReliableMessage) -> None:
        key = secrets.token_hex(8)
        attributes = {**message.attributes, ACK: key}
        give_up = asyncio.get_running_loop().time() + _PATIENCE_SECONDS
        received = self._open[key] = asyncio.Event()
        tries = 0
        try:
            while not received.is_set():
                if asyncio.get_running_loop().time() > give_up:
                    log.warning("nobody has confirmed %r", message.text)
                    return
                if not self._anybody():
                    await asyncio.sleep(_LOOK_SECONDS)
                    continue
                left = await self._send(message, attributes)
                there = set(self._room.remote_participants)
                tries += left
                if not there <= self._silent:
                    await _happens(received, _AGAIN_SECONDS)
                if tries >= _TRIES:
                    self._silent |= there - self._confirming
                if left and there and there <= self._silent:
                    return
        finally:
            del self._open[key]

    async def _send(self, message: ReliableMessage, attributes: Mapping[str, str]) -> bool:
        """Whether the message has left; it may be lost all the same."""
        try:
            async with asyncio.timeout(_SEND_SECONDS):
                writer = await self._room.local_participant.stream_text(
                    topic=message.topic, attributes=dict(attributes), sender_identity=message.sender
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

    async def read(self, reader: Any) -> str | None:
        """The text of a message, cut at 20,000 characters; None if it broke off or has come before."""
        text = ""
        try:
            async for piece in reader:
                text += piece
                if len(text) > _LONGEST:
                    reader.close()
                    break
        except ConnectionError:
            return None
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
