"""A session without a conversation of its own: the face of an agent elsewhere, which says what the agent sends.

The protocol is LiveKit Agents'. The agent sends each segment of speech as a byte stream to its avatar, much faster than
it is spoken, and interrupts by a call of `lk.clear_buffer`. The avatar calls `lk.playback_started` when a segment's
first sound leaves, and `lk.playback_finished` once for each stream: an agent that misses one waits for ever. State,
captions and chat are the agent's business.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from typing import Any

from actors.pipeline.context import StageContext
from actors.pipeline.session import NO_AGENT
from actors.pipeline.trace import Turn
from actors.room.livekit import LivekitRoom, is_end_of_call
from actors.room.segments import Segment, Segments, Sink
from actors.voice.tasks import Tasks
from characters.chunk import SAMPLE_RATE

log = logging.getLogger(__name__)

CLEAR, STARTED, FINISHED = "lk.clear_buffer", "lk.playback_started", "lk.playback_finished"
_ALIVE = "characters.alive"  # a method that no agent has: its refusal is a sign of life
_PUMP_SECONDS = 0.05
_SETTLE_SECONDS = 0.3  # from a cancellation to the report of what left until then: the chunk that is leaving
_CALL_SECONDS = 5.0
_TRIES, _AGAIN_SECONDS = 4, 0.5
_BEAT_SECONDS, _BEAT_TIMEOUT, _DEAD_SECONDS = 1.0, 1.5, 6.0
_AWAY_SECONDS = 5.0  # after which an agent that has left does not come back
_JOIN_SECONDS = 30.0
# Codes of `rtc.RpcError`: not acknowledged, no such participant, not sent. After any other, to call again might finish
# a segment twice.
_UNDELIVERED = (1501, 1401, 1505)
_NO_SUCH_METHOD = 1400


class Avatar:
    """The mouth of one agent, in the event loop of its room.

    Args:
        room: joined.
        agent: its identity; "" for whoever sends first.
        aligner: takes the sound.
        context: of the process.
        response_id: segments count from the next one on.
        state: from `snapshot` of the process before this one.
    """

    def __init__(
        self,
        room: LivekitRoom,
        agent: str,
        aligner: Sink,
        context: StageContext,
        response_id: int = 0,
        state: dict[str, Any] | None = None,
    ) -> None:
        self._outlet, self._room, self._loop = room, room.room, room.loop
        self._agent, self._context = agent or (state or {}).get("agent", ""), context
        self._segments = Segments(aligner, time.monotonic, response_id)
        self._tasks = Tasks()
        self._calls: asyncio.Queue[tuple[str, dict[str, Any]]] = asyncio.Queue()
        self._unsent: list[dict[str, Any]] = []  # finishes that the agent has not been told
        self._published = asyncio.Event()
        self._readers: dict[int, Any] = {}
        self._tells_start = True
        self._seen = time.monotonic()  # when the agent was last known to live
        self._met = False
        asyncio.run_coroutine_threadsafe(self._start(state), self._loop).result()

    async def _start(self, state: dict[str, Any] | None) -> None:
        room = self._room
        room.local_participant.register_rpc_method(CLEAR, self._on_clear)
        room.on("data_received", self._on_data)
        room.on("participant_connected", lambda who: self._meet(who.identity))
        for identity in room.remote_participants:
            self._meet(identity)
        self._outlet.take_streams(lambda reader, who: self._on_stream(reader, who))
        for work in (self._pump(), self._send(), self._watch()):
            self._tasks.spawn(work)
        if state is not None:
            # What began after the newest snapshot is not known here, so one segment is finished in any case: an agent
            # passes over one finish too many, but waits for ever for one that does not come.
            for position in state["open"] or [0.0]:
                self._finish(position, interrupted=True)

    # From the stage, from any thread.

    def snapshot(self) -> dict[str, Any]:
        """What another process needs to leave no segment unfinished."""
        # Copies, as the room's thread goes on meanwhile.
        positions = [segment.position() for segment in (*list(self._segments.cleared), *list(self._segments.open))]
        return {
            "response_id": self._segments.newest,
            "agent": self._agent,
            "open": [told["playback_position"] for told in list(self._unsent)] + positions,
        }

    def leaving(self, response_id: int, at: float) -> None:
        """A chunk of this response leaves at `at`, in seconds of `time.monotonic`."""
        self._loop.call_soon_threadsafe(self._on_leaving, response_id, at)

    def published(self) -> None:
        """A chunk has been published."""
        self._loop.call_soon_threadsafe(self._published.set)

    def played(self, response_id: int, samples: int) -> None:
        """So many samples of a response have been played in all."""
        self._loop.call_soon_threadsafe(self._segments.played, response_id, samples)

    def close(self) -> None:
        """End all work; the room stays."""
        with contextlib.suppress(Exception):  # the room may be gone
            asyncio.run_coroutine_threadsafe(self._tasks.cancel(), self._loop).result(5.0)

    # From the room.

    def _is_agent(self, identity: str) -> bool:
        if not self._agent:
            log.info("the avatar's agent is %s", identity)
            self._agent = identity
            self._meet(identity)
        return identity == self._agent

    def _meet(self, identity: str) -> None:
        if identity == self._agent:
            self._met, self._seen = True, time.monotonic()

    def _on_stream(self, reader: Any, identity: str) -> None:
        if not self._is_agent(identity):
            log.warning("a stream of %s is not the agent's: it is not read", identity)
            reader.close()
            return
        self._meet(identity)
        segment = self._segments.begin(reader.info.attributes or {})
        if not segment.rate:
            log.warning("a segment cannot be played: %s", reader.info.attributes)
        self._readers[segment.id] = reader
        self._tasks.spawn(self._read(reader, segment))

    async def _read(self, reader: Any, segment: Segment) -> None:
        dropped = False
        try:
            async for data in reader:
                self._seen = time.monotonic()
                if not self._segments.receive(segment, data) and segment.rate and not segment.ended and not dropped:
                    dropped = True
                    log.warning("the agent has sent more than can wait: the rest of a segment is dropped")
                self._segments.pump()
        except ConnectionError as error:
            log.warning("a segment has broken off: %s", error)
        finally:
            self._readers.pop(segment.id, None)
            reader.close()
        self._segments.end(segment)

    async def _on_clear(self, call: Any) -> str:
        if not self._is_agent(call.caller_identity):
            return "reject"
        segments = self._segments
        held = self._outlet.ahead()
        self._context.cancel(segments.newest)
        cleared = segments.clear()
        for segment in cleared:
            if reader := self._readers.get(segment.id):
                reader.close()
        if cleared:
            self._tasks.spawn(self._finish_cleared(cleared, int(held * SAMPLE_RATE)))
        return "ok"

    async def _finish_cleared(self, cleared: list[Segment], lost: int) -> None:
        """Tell what had left, once the chunk that was leaving has."""
        self._published.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SETTLE_SECONDS):
                await self._published.wait()
        for segment in cleared:
            self._segments.cleared.remove(segment)
            self._finish(segment.position(lost if segment.played else 0), interrupted=True)

    def _on_data(self, packet: Any) -> None:
        sender = packet.participant.identity if packet.participant is not None else ""
        if sender and sender == self._agent and is_end_of_call(packet.data):
            self._tasks.spawn(self._outlet.end("the agent has ended the call"))

    # To the agent.

    def _on_leaving(self, response_id: int, at: float) -> None:
        segment = next((segment for segment in self._segments.open if segment.id == response_id), None)
        if segment is not None and not segment.begun:
            segment.begun = True
            self._loop.call_later(max(0.0, at - time.monotonic()), self._on_begun, segment)

    def _on_begun(self, segment: Segment) -> None:
        if segment not in self._segments.open:  # cleared meanwhile
            return
        if self._tells_start:
            self._calls.put_nowait((STARTED, {}))
        stamps = {"received": segment.began, "first_heard": time.monotonic()}
        self._context.record_turn(Turn(segment.id, stamps))

    def _finish(self, position: float, interrupted: bool) -> None:
        told = {"playback_position": float(position), "interrupted": interrupted}
        self._unsent.append(told)
        self._calls.put_nowait((FINISHED, told))

    async def _pump(self) -> None:
        while True:
            await asyncio.sleep(_PUMP_SECONDS)
            self._segments.pump()
            for segment in self._segments.finished():
                # The last sound has been handed to the SDK, and leaves when what is before it has left.
                await asyncio.sleep(self._outlet.ahead() + self._outlet.sound_lag)
                self._finish(segment.position(), interrupted=False)

    async def _send(self) -> None:
        """Calls the agent, one call after another."""
        while True:
            method, told = await self._calls.get()
            if self._agent:
                await self._call(method, json.dumps(told) if told else "")
            if method == FINISHED:
                self._unsent.pop(0)

    async def _call(self, method: str, payload: str) -> None:
        for attempt in range(_TRIES):
            try:
                await self._room.local_participant.perform_rpc(
                    destination_identity=self._agent, method=method, payload=payload, response_timeout=_CALL_SECONDS
                )
                self._seen = time.monotonic()
                return
            except Exception as error:  # rtc.RpcError, or what the SDK raises without a connection
                code = getattr(error, "code", None)
                if method == STARTED:
                    self._tells_start = code != _NO_SUCH_METHOD  # agents need not have it
                    return
                log.warning("the agent was not told %s: %r (attempt %d)", method, error, attempt + 1)
                if code is not None and code not in _UNDELIVERED:
                    return
                await asyncio.sleep(_AGAIN_SECONDS)

    # Whether there is an agent.

    async def _watch(self) -> None:
        """The server notices only after 20 s that a process was killed; so the agent is asked.

        It is asked, too, if the SDK does not list it: a participant that joins while we do can be missing there.
        """
        joined = time.monotonic()
        while True:
            await asyncio.sleep(_BEAT_SECONDS)
            now = time.monotonic()
            if not self._room.isconnected():
                joined = self._seen = now  # it is we who are away
                continue
            if self._agent and now - self._seen > _BEAT_SECONDS:
                await self._ask_whether_it_lives()
            quiet = time.monotonic() - self._seen
            if not self._met:
                if now - joined > _JOIN_SECONDS:
                    await self._outlet.end(NO_AGENT)
            elif self._agent not in self._room.remote_participants and quiet > _AWAY_SECONDS:
                await self._outlet.end("the agent has left")
            elif quiet > _DEAD_SECONDS:
                await self._outlet.end("the agent does not answer any more")

    async def _ask_whether_it_lives(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_BEAT_TIMEOUT):
                try:
                    await self._room.local_participant.perform_rpc(
                        destination_identity=self._agent, method=_ALIVE, payload="", response_timeout=_CALL_SECONDS
                    )
                except Exception as error:
                    if getattr(error, "code", None) != _NO_SUCH_METHOD:
                        return
                self._meet(self._agent)
