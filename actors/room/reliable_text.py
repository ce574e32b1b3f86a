"""Texts to and from a room, so that none that matters is lost or counted twice.

What is sent over a LiveKit data channel while the server or the other side is away, or not quite back, is dropped, and
nobody is told. So a letter that must arrive has an id in its attribute RECEIPT; whoever has read it returns the id as a
data packet on the topic of the same name; until then it is sent again. To a client that knows nothing of this a letter
is an ordinary text stream: the first is sent a few times, because its silence may be a loss, and others once.
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

RECEIPT = "characters.receipt"
_SEND_SECONDS = 5.0
_AGAIN_SECONDS = 1.0  # without a receipt
_TRIES = 4  # without one from somebody who has never given any; a link that has just come back loses things for 3 s
_PATIENCE_SECONDS = 60.0  # a server that is longer away has ended the session
_LOOK_SECONDS = 0.1
_WAITING = 200  # letters; beyond, those that need not arrive are dropped
_LONGEST = 20_000  # characters of a letter that are read
_REMEMBERED = 1000


@dataclass(frozen=True, slots=True)
class Letter:
    """A text to the room.

    Attributes:
        topic, text, attributes: of the text stream.
        sender: identity that it appears to come from; None for one's own.
        certain: whether it must arrive.
    """

    topic: str
    text: str
    attributes: Mapping[str, str]
    sender: str | None = None
    certain: bool = False


class Outbox:
    """Sends letters, one after another, in order. All methods belong to the room's event loop.

    Args:
        room: the SDK's; `run` must be running for anything to leave.
    """

    def __init__(self, room: Any) -> None:
        from livekit import rtc

        self._room, self._connected = room, rtc.ConnectionState.CONN_CONNECTED
        self._queue: asyncio.Queue[Letter] = asyncio.Queue()
        self._open: dict[str, asyncio.Event] = {}  # id -> its receipt has come
        self._confirming: set[str] = set()  # identities that give receipts
        self._silent: set[str] = set()  # and those that seem to give none
        room.on("data_received", self._on_data)

    def put(self, letter: Letter) -> None:
        """Send it when its turn comes; one that need not arrive is dropped if there are too many."""
        if letter.certain or self._queue.qsize() < _WAITING:
            self._queue.put_nowait(letter)

    async def run(self) -> None:
        """Deliver, until cancelled."""
        while True:
            letter = await self._queue.get()
            if letter.certain:
                await self._deliver(letter)
            elif self._anybody():
                await self._send(letter, letter.attributes)

    async def _deliver(self, letter: Letter) -> None:
        key = secrets.token_hex(8)
        attributes = {**letter.attributes, RECEIPT: key}
        give_up = asyncio.get_running_loop().time() + _PATIENCE_SECONDS
        received = self._open[key] = asyncio.Event()
        tries = 0
        try:
            while not received.is_set():
                if asyncio.get_running_loop().time() > give_up:
                    log.warning("nobody has confirmed %r", letter.text)
                    return
                if not self._anybody():
                    await asyncio.sleep(_LOOK_SECONDS)
                    continue
                left = await self._send(letter, attributes)
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

    async def _send(self, letter: Letter, attributes: Mapping[str, str]) -> bool:
        """Whether it has left, which is not yet to arrive."""
        try:
            async with asyncio.timeout(_SEND_SECONDS):
                writer = await self._room.local_participant.stream_text(
                    topic=letter.topic, attributes=dict(attributes), sender_identity=letter.sender
                )
                await writer.write(letter.text)
                await writer.aclose()
        except Exception as error:  # no reason to end a conversation, whatever the SDK raises
            log.warning("cannot send to the room: %r", error)
            return False
        return True

    def _anybody(self) -> bool:
        return bool(self._room.connection_state == self._connected and self._room.remote_participants)

    def _on_data(self, packet: Any) -> None:
        if packet.topic != RECEIPT or packet.participant is None:
            return
        self._confirming.add(packet.participant.identity)
        self._silent.discard(packet.participant.identity)
        if found := self._open.get(packet.data.decode(errors="replace")):
            found.set()


class Letterbox:
    """Reads letters, gives receipts, and knows which ones have come before.

    Args:
        room: the SDK's.
    """

    def __init__(self, room: Any) -> None:
        self._room = room
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._receipts: set[asyncio.Task[None]] = set()

    async def read(self, reader: Any) -> str | None:
        """The text of a letter, of a very long one its beginning; None if it broke off or has come before."""
        text = ""
        try:
            async for piece in reader:
                text += piece
                if len(text) > _LONGEST:
                    reader.close()
                    break
        except ConnectionError:
            return None
        key = (reader.info.attributes or {}).get(RECEIPT)
        if key is None:
            return text
        receipt = asyncio.get_running_loop().create_task(self._confirm(key))
        self._receipts.add(receipt)
        receipt.add_done_callback(self._receipts.discard)
        known = key in self._seen
        self._seen[key] = None
        while len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)
        return None if known else text

    async def _confirm(self, key: str) -> None:
        try:
            async with asyncio.timeout(_SEND_SECONDS):
                await self._room.local_participant.publish_data(key, topic=RECEIPT)
        except Exception as error:  # it will come again, and so will the receipt
            log.warning("cannot confirm a letter: %r", error)


async def _happens(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, but no longer than that."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
