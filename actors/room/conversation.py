"""Joins a voice bridge to its room: microphone, chat and requests in; captions, state and figures out."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np

from actors.pipeline.header import Header
from actors.pipeline.trace import Turn
from actors.roles.aligner import AudioAligner
from actors.room.livekit import LivekitRoom
from actors.room.reliable_text import Inbox, Outbox, ReliableMessage
from actors.voice.bridge import VoiceBridge
from actors.voice.config import VoiceConfig
from actors.voice.events import (
    Backchannel,
    Cancelled,
    Event,
    Interrupted,
    ReplyAudio,
    ReplyHeard,
    ReplyStarted,
    ReplyText,
    TurnDone,
    TurnTrace,
    UserStartedSpeaking,
    UserText,
    UserTurn,
    VoiceError,
)
from actors.voice.parts import Parts
from actors.voice.protocols import HEARING_RATE, Message
from characters.character import Character
from characters.chunk import FRAMES_PER_CHUNK

log = logging.getLogger(__name__)

CHAT, CAPTIONS, NOTICES = "lk.chat", "lk.transcription", "characters.notice"
FIGURES, SHOWN = "characters.figures", "characters.shown"
_FRAME_MS = 20
_HEARD_FRAMES = 100  # sound from the user that may wait: two seconds, then the oldest is dropped
_SEND_SECONDS = 5.0
_LONGEST_REPORT = 4_000  # bytes
_BACK_AGAIN = "Sorry, I was gone for a moment. Where were we?"


class Conversation:
    """One session's voice, in the event loop of its room.

    Args:
        character: who speaks.
        parts: of the voice bridge.
        config: as given to the parts.
        room: joined.
        aligner: takes the voice and tells what was played.
        misses: counts the late chunks so far.
        record: enters a finished turn in the trace.
        shown: enters there when a user saw a frame; how long it was on its way, if that is known.
        state: from `snapshot` of the process before this one.
        response_id: replies count from here on.
    """

    def __init__(
        self,
        character: Character,
        parts: Parts,
        config: VoiceConfig,
        room: LivekitRoom,
        aligner: AudioAligner,
        misses: Callable[[], int],
        record: Callable[[Turn], None],
        shown: Callable[[int, float], float | None],
        state: dict[str, Any] | None = None,
        response_id: int = 0,
    ) -> None:
        from livekit import rtc

        self._rtc, self._room, self._loop = rtc, room.room, room.loop
        self._aligner, self._misses, self._record, self._shown = aligner, misses, record, shown
        self._again = bool(state)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._outbox, self._inbox = Outbox(self._room), Inbox(self._room)
        self._hearing: tuple[str, asyncio.Task[Any]] | None = None  # sid of the track that is heard
        self._speaker = ""  # identity of who is heard
        self._segment = 0
        self._response_id = response_id
        self._turn_seconds = 0.0
        self._publish_to_render: float | None = None  # of a frame from here to the user's eye
        self._work: list[float] = []  # seconds of work on each chunk since the figures were last sent
        self._chunks = 0
        self._doing = "listening"
        self._news = asyncio.Event()  # what the room should know of us may have changed
        # A room that is joined again, and again, is still one that everybody has left.
        self._alone_since: float | None = time.monotonic() - (state or {}).get("alone", 0.0)
        self._greeted = False
        self._bridge = VoiceBridge(character, parts, self._on_event, config)
        self._bridge.restore([Message(role, text) for role, text in (state or {}).get("history", [])], response_id)
        aligner.on_played = self._on_played
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()

    def snapshot(self) -> dict[str, Any]:
        """What another process needs to go on with the conversation; from any thread."""
        spoken = [(m.role, m.text) for m in self._bridge.history if m.role in ("user", "assistant")]
        return {"history": spoken, "response_id": self._bridge.response_id, "alone": self.alone}

    def chunk(self, header: Header, places: int) -> None:
        """A chunk has been published, by the publisher's thread; `places` stamp it."""
        # Work between the aligner and here: the model's and the decoder's, without waiting.
        work = sum(header.stamps[2 * p + 1] - header.stamps[2 * p] for p in range(1, places - 1))
        self._loop.call_soon_threadsafe(self._on_chunk, work)

    def notice(self, text: str) -> None:
        """Tell the user something about the session; from any thread."""
        self._loop.call_soon_threadsafe(self._notify, text)

    @property
    def alone(self) -> float:
        """Seconds since the last user left; 0 while one is there."""
        since = self._alone_since
        return 0.0 if since is None else time.monotonic() - since

    def close(self) -> None:
        """End the conversation; the room stays."""
        self._aligner.on_played = None
        with contextlib.suppress(Exception):  # on the way out nothing is left to be told
            asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(5.0)

    async def _start(self) -> None:
        room, participant = self._room, self._room.local_participant
        room.on("track_published", lambda publication, _: self._choose(publication))
        room.on("track_unpublished", lambda *_: self._news.set())
        room.on("track_subscribed", lambda track, _, who: self._listen(track, who.identity))
        room.on("track_unsubscribed", lambda track, *_: self._deafen(track.sid))
        room.on("participant_connected", lambda _: self._count())
        room.on("participant_disconnected", lambda _: self._count())
        room.on("reconnected", self._count)
        room.on("reconnected", self._news.set)  # a server that was started again knows nothing of us
        room.on("data_received", self._on_data)
        room.register_text_stream_handler(CHAT, lambda reader, who: self._spawn(self._read_chat(reader)))
        for method in ("interrupt", "lk.clear_buffer"):
            participant.register_rpc_method(method, self._on_interrupt)
        for who in room.remote_participants.values():
            for publication in who.track_publications.values():
                self._choose(publication)
        self._spawn(self._outbox.run())
        self._spawn(self._tell_state())
        self._spawn(self._figures())
        self._spawn(self._bridge.start())
        self._count()
        self._news.set()

    async def _close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._bridge.close()

    # From the room.

    def _choose(self, publication: Any) -> None:
        if publication.kind == self._rtc.TrackKind.KIND_AUDIO:
            publication.set_subscribed(True)
            self._news.set()

    def _listen(self, track: Any, identity: str) -> None:
        """Hear this track, and no other: the newest microphone is the user's."""
        if track.kind != self._rtc.TrackKind.KIND_AUDIO:
            return
        if self._hearing is not None:
            self._hearing[1].cancel()
        self._speaker = identity
        self._hearing = (track.sid, self._spawn(self._hear(track)))
        self._news.set()

    def _deafen(self, sid: str) -> None:
        if self._hearing is not None and self._hearing[0] == sid:
            self._hearing[1].cancel()
            self._hearing = None

    async def _hear(self, track: Any) -> None:
        stream = self._rtc.AudioStream(
            track, sample_rate=HEARING_RATE, num_channels=1, frame_size_ms=_FRAME_MS, capacity=_HEARD_FRAMES
        )
        try:
            async for event in stream:
                self._bridge.push_audio(np.frombuffer(event.frame.data, np.int16), HEARING_RATE)
        finally:
            await stream.aclose()

    async def _read_chat(self, reader: Any) -> None:
        if text := await self._inbox.read(reader):
            self._bridge.push_text(text)

    def _on_data(self, packet: Any) -> None:
        """A client tells when it showed frames: JSON, [number of the frame, milliseconds ago] of each.

        It knows best how long such a message is on its way, and has added that.
        """
        if packet.topic != SHOWN or packet.participant is None or len(packet.data) > _LONGEST_REPORT:
            return
        now = time.monotonic()
        try:
            seen = [(int(frame), now - float(ago) / 1000) for frame, ago in json.loads(packet.data)]
        except (ValueError, TypeError, OverflowError, RecursionError):
            return
        ways = [way for frame, at in seen if (way := self._shown(frame, at)) is not None]
        if ways:
            self._publish_to_render = sum(ways) / len(ways)

    async def _on_interrupt(self, data: Any) -> str:
        self._bridge.interrupt()
        return "ok"

    def _count(self) -> None:
        if self._room.remote_participants:
            self._alone_since = None
            self._greet()
        elif self._alone_since is None:
            self._alone_since = time.monotonic()

    def _greet(self) -> None:
        """Once, when there are both somebody to greet and a face that does it."""
        if self._greeted or not self._chunks or self._alone_since is not None:
            return
        self._greeted = True
        if self._again:
            self._bridge.say(_BACK_AGAIN)
        else:
            self._bridge.greet()

    # From the publisher.

    def _on_played(self, response_id: int, samples: int) -> None:
        self._loop.call_soon_threadsafe(self._bridge.report_played, response_id, samples)

    def _on_chunk(self, work: float) -> None:
        self._chunks += 1
        self._work.append(work)
        self._greet()

    # From the bridge.

    def _on_event(self, event: Event) -> None:
        match event:
            case ReplyAudio():
                self._aligner.push(event.response_id, event.pcm)
                self._state("speaking")
            case Cancelled():
                self._aligner.broadcast(event.response_id)
            case ReplyStarted():
                self._response_id = event.response_id
            case ReplyText():
                self._caption(f"reply-{event.response_id}", event.text, event.final, user=False)
            case UserStartedSpeaking():
                self._segment += 1
                self._state("listening")
            case UserText():
                self._caption(f"user-{self._segment}", event.text, False, user=True)
            case UserTurn():
                if not event.typed:  # what was typed is on the user's screen already
                    self._caption(f"user-{self._segment}", event.text, True, user=True)
                self._state("thinking")
            case Backchannel():
                if event.text:
                    self._caption(f"user-{self._segment}", event.text, True, user=True)
            case ReplyHeard() | Interrupted():
                self._state("listening")
            case TurnDone():
                self._turn_done(event.trace)
            case VoiceError():
                log.warning("voice: %s: %s", event.stage, event.message)
                self._notify(f"{event.stage}: {event.message}")

    def _turn_done(self, trace: TurnTrace) -> None:
        stamps = {name: at for name, at in trace.stamps().items() if name != "speech_start"}
        if trace.speech_end is None:  # nobody asked: the greeting
            return
        ordered = dict(sorted(stamps.items(), key=lambda item: item[1]))
        self._turn_seconds = (trace.first_heard or trace.speech_end) - trace.speech_end
        self._record(Turn(self._response_id, ordered))

    # To the room.

    def _caption(self, segment: str, text: str, final: bool, *, user: bool) -> None:
        """Whole texts: a stream with the same segment id replaces the one before."""
        if not text and not final:
            return
        attributes = {"lk.segment_id": segment, "lk.transcription_final": "true" if final else "false"}
        if user and self._hearing is not None:
            attributes["lk.transcribed_track_id"] = self._hearing[0]
        sender = self._speaker if user else None
        self._outbox.put(ReliableMessage(CAPTIONS, text, attributes, sender, certain=final))

    def _notify(self, text: str) -> None:
        self._outbox.put(ReliableMessage(NOTICES, text, {}, certain=True))

    def _state(self, state: str) -> None:
        self._doing = state
        self._news.set()

    def _deaf(self) -> bool:
        """Whether somebody has a microphone that is not heard yet."""
        audio = self._rtc.TrackKind.KIND_AUDIO
        return any(
            publication.kind == audio and not publication.subscribed
            for who in self._room.remote_participants.values()
            for publication in who.track_publications.values()
        )

    async def _tell_state(self) -> None:
        """What we are doing, as an attribute; "initializing" instead of "listening" while we do not hear yet."""
        while True:
            await self._news.wait()
            self._news.clear()
            state = "initializing" if self._doing == "listening" and self._deaf() else self._doing
            try:
                async with asyncio.timeout(_SEND_SECONDS):
                    await self._room.local_participant.set_attributes({"lk.agent.state": state})
            except Exception as error:  # without a connection; the next one brings news
                log.warning("cannot tell the room what we do: %r", error)

    async def _figures(self) -> None:
        """Once a second, for whoever shows them."""
        before, chunks = time.monotonic(), 0
        while True:
            await asyncio.sleep(1.0)
            now, seen = time.monotonic(), self._publish_to_render
            figures = {
                "fps": round((self._chunks - chunks) * FRAMES_PER_CHUNK / (now - before), 1),
                "chunk_ms": round(1000 * sum(self._work) / len(self._work), 1) if self._work else 0.0,
                "turn_ms": round(1000 * self._turn_seconds),
                "publish_to_render_ms": None if seen is None else round(1000 * seen),
                "drops": self._misses(),
                "response_id": self._response_id,
            }
            before, chunks, self._work = now, self._chunks, []
            with contextlib.suppress(Exception):  # figures are no reason to end a conversation
                async with asyncio.timeout(_SEND_SECONDS):
                    await self._room.local_participant.publish_data(json.dumps(figures), reliable=False, topic=FIGURES)

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the conversation failed", exc_info=error)
