"""Joins a voice bridge to its room: microphone, chat and requests in; captions, state and figures out."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Callable
from typing import Any

from actors.pipeline.context import StageContext
from actors.pipeline.header import Header
from actors.pipeline.trace import Turn
from actors.roles.aligner import AudioAligner
from actors.room.allowance import Allowance
from actors.room.announcer import Announcer
from actors.room.figures import Figures
from actors.room.livekit import LivekitRoom, is_end_of_call
from actors.room.microphone import Microphone
from actors.room.reliable_text import Inbox
from actors.voice import events
from actors.voice.bridge import VoiceBridge
from actors.voice.config import VoiceConfig
from actors.voice.parts import Parts
from actors.voice.protocols import Message
from actors.voice.tasks import Tasks
from actors.voice.tools import open_tools
from characters.character import Character
from characters.chunk import Clock
from characters.errors import UserError

log = logging.getLogger(__name__)

CHAT, RENDERED = "lk.chat", "characters.rendered"
_LONGEST_REPORT = 4_000  # bytes
# What a user is told of a part that failed. Why it did is for the log: a server's error may name addresses and keys.
_TROUBLE = {
    "stt": "The character has trouble hearing at the moment.",
    "tts": "The character has trouble speaking at the moment.",
    "turn": "The character may wait a little longer before it answers.",
}
_TROUBLE_THINKING = "The character has trouble answering at the moment."
_ONE_IS_HEARD = "Of the microphones in this call, {}'s is heard."
_TOO_FAST = "That is more than I can read at once: please send it again in a moment."
_STILL = "The picture stands still for a moment: part of the character does not answer."
_RESTARTED = "one of the character's processes ended and was started again"
_STILL_SECONDS = 1.0  # without a chunk; three are late by then
_LOOK_SECONDS = 0.2
_BACK_AGAIN = "Sorry, I was gone for a moment. Where were we?"


class Conversation:
    """One session's voice, in the event loop of its room.

    Args:
        character: who speaks.
        parts: of the voice bridge.
        config: as given to the parts.
        room: joined.
        aligner: takes the voice.
        context: of the process.
        misses: counts the chunks that left late so far.
        state: from `snapshot` of the process before this one.
        response_id: replies count from here on.
        user: identity of the session's own user, who is heard before others; "" if it is not known.
        plain: see `RoomAddress.plain`; such clients say in a plain packet, too, that they hang up.
        clock: of the model.
    """

    def __init__(
        self,
        character: Character,
        parts: Parts,
        config: VoiceConfig,
        room: LivekitRoom,
        aligner: AudioAligner,
        context: StageContext,
        misses: Callable[[], int],
        state: dict[str, Any] | None = None,
        response_id: int = 0,
        user: str = "",
        plain: bool = False,
        *,
        clock: Clock,
    ) -> None:
        state = state or {}
        self._outlet, self._plain = room, plain
        self._room, self._loop = room.room, room.loop
        self._aligner, self._context = aligner, context
        self._character, self._config = character, config
        self._again = bool(state)
        self._user = user
        self._told = ""  # identity of the one who the room was told is heard, while several could be
        self._tasks = Tasks()
        self._inbox = Inbox(self._room)
        self._may_write, self._may_hear_of_it = Allowance(burst=8, rate=1.0), Allowance(burst=1, rate=0.2)
        self._may_report = Allowance(burst=10, rate=4.0)
        self._figures = Figures(misses, response_id, clock)
        self._segment = 0  # number of the user's captions
        # A room that a new process joins may be one that everybody has left long ago.
        self._alone_since: float | None = time.monotonic() - state.get("alone", 0.0)
        self._greeted = False
        self._shown, self._still = time.monotonic(), False  # when the newest chunk was, and whether it was long ago
        self._bridge = VoiceBridge(character, parts, self._on_event, config)
        self._bridge.restore([Message(role, text) for role, text in state.get("history", [])], response_id)
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()

    async def _start(self) -> None:
        room = self._room
        self._announcer = Announcer(room, self._tasks, self._hears, self._figures.take, self._plain)
        push_audio = self._bridge.push_audio
        self._microphone = Microphone(room, self._tasks, push_audio, self._on_microphones, self._user)
        for event in ("participant_connected", "participant_disconnected", "reconnected"):
            room.on(event, lambda *_: self._count_users())
        room.on("data_received", self._on_data)
        room.register_text_stream_handler(CHAT, lambda reader, who: self._tasks.spawn(self._read_chat(reader, who)))
        for method in ("interrupt", "lk.clear_buffer"):
            room.local_participant.register_rpc_method(method, self._on_interrupt)
        self._tasks.spawn(self._bridge.start())
        self._tasks.spawn(self._watch_picture())
        self._tasks.spawn(self._offer_tools())
        self._count_users()

    async def _offer_tools(self) -> None:
        """What the character asks for. Without it the conversation goes on; the log says what is missing."""
        try:
            self._bridge.offer(await open_tools(self._character.tools, self._config.llm.tool_hosts))
        except UserError as error:
            log.error("the tools of %s: %s", self._character.name, error)

    def snapshot(self) -> dict[str, Any]:
        """What another process needs to go on with the conversation; from any thread."""
        spoken = [(m.role, m.text) for m in self._bridge.history if m.role in ("user", "assistant")]
        return {"history": spoken, "response_id": self._bridge.response_id, "alone": self.alone}

    def published(self, header: Header, spans: int) -> None:
        """A chunk that has so many spans has been published; from any thread."""
        # The spans between the aligner's and the publisher's: the model's and the decoder's work, without waiting.
        work = sum(header.stamps[2 * s + 1] - header.stamps[2 * s] for s in range(1, spans - 1))
        self._loop.call_soon_threadsafe(self._on_published, work, header.frames)

    def played(self, response_id: int, samples: int) -> None:
        """So many samples of a response have been played in all; from any thread."""
        self._loop.call_soon_threadsafe(self._bridge.report_played, response_id, samples)

    def interrupted(self) -> None:
        """Another process of the session was replaced: tell the user, and that the picture stands; from any thread."""
        self._loop.call_soon_threadsafe(self._announcer.notify, _RESTARTED)
        self._loop.call_soon_threadsafe(self._stand_still)

    @property
    def alone(self) -> float:
        """Seconds since the last user left; 0 while one is there."""
        since = self._alone_since
        return 0.0 if since is None else time.monotonic() - since

    @property
    def response_id(self) -> int:
        """Of the newest reply."""
        return self._figures.response_id

    def close(self) -> None:
        """End the conversation; the room stays."""
        with contextlib.suppress(Exception):  # nobody is left who could be told
            asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(5.0)

    async def _close(self) -> None:
        await self._tasks.cancel()
        await self._bridge.close()

    # From the room.

    async def _read_chat(self, reader: Any, identity: str) -> None:
        if not (text := await self._inbox.read(reader, identity)):
            return
        if self._may_write.take(identity):
            self._bridge.push_text(text)
        elif self._may_hear_of_it.take(identity):
            self._announcer.notify(_TOO_FAST)

    def _on_data(self, packet: Any) -> None:
        """A client tells when it rendered frames: JSON, [number of the frame, milliseconds ago] of each.

        The client knows best how long such a message travels, and has added that.
        """
        sender = packet.participant.identity if packet.participant is not None else ""
        if self._plain and sender and sender == self._user and is_end_of_call(packet.data):
            self._tasks.spawn(self._outlet.end("the user has ended the call"))
        if packet.topic != RENDERED or packet.participant is None or len(packet.data) > _LONGEST_REPORT:
            return
        if not self._may_report.take(packet.participant.identity):
            return
        now = time.monotonic()
        try:
            rendered = [(int(frame), now - float(ago) / 1000) for frame, ago in json.loads(packet.data)]
        except (ValueError, TypeError, OverflowError, RecursionError):
            return
        found = [self._context.record_render(frame, at) for frame, at in rendered]
        if delays := [seconds for seconds in found if seconds is not None]:
            self._figures.render = sum(delays) / len(delays)

    def _hears(self) -> tuple[bool, str]:
        microphone = self._microphone
        return not microphone.pending(), microphone.speaker if microphone.track is not None else ""

    def _on_microphones(self) -> None:
        """Who is heard, or who could be, may have changed: where several could, all are told who is."""
        self._announcer.refresh()
        heard, several = self._microphone.speaker, len(self._microphone.owners) > 1
        if self._microphone.track is None:
            return
        if (several and heard != self._told) or (not several and self._told not in ("", heard)):
            who = self._room.remote_participants.get(heard)
            self._announcer.notify(_ONE_IS_HEARD.format(getattr(who, "name", "") or heard))
        self._told = heard if several else ""

    async def _on_interrupt(self, _: Any) -> str:
        self._bridge.interrupt()
        return "ok"

    def _count_users(self) -> None:
        if self._room.remote_participants:
            self._alone_since = None
            self._greet()
        elif self._alone_since is None:
            self._alone_since = time.monotonic()

    def _greet(self) -> None:
        """Once, when there are both a user to greet and a face that greets."""
        if self._greeted or not self._figures.chunks or self._alone_since is not None:
            return
        self._greeted = True
        if self._again:
            self._bridge.say(_BACK_AGAIN)
        else:
            self._bridge.greet()

    # From the publisher.

    def _on_published(self, work: float, frames: int) -> None:
        self._figures.add_chunk(work, frames)
        self._shown = time.monotonic()
        if self._still:
            self._still = False
            self._announcer.still(False)
        self._greet()

    async def _watch_picture(self) -> None:
        """Chunks come even while the character is silent. If none does, the user is not to wait for an answer."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            if self._figures.chunks and not self._still and time.monotonic() - self._shown > _STILL_SECONDS:
                self._stand_still()
                if self._may_hear_of_it.take("picture"):
                    self._announcer.notify(_STILL)

    def _stand_still(self) -> None:
        self._still = True
        self._announcer.still(True)

    # From the bridge.

    def _on_event(self, event: events.Event) -> None:
        announcer = self._announcer
        match event:
            case events.ReplyAudio():
                self._aligner.push(event.response_id, event.pcm)
                announcer.state("speaking")
            case events.Cancelled():
                self._context.cancel(event.response_id)
            case events.ReplyStarted():
                self._figures.response_id = event.response_id
            case events.ReplyText():
                announcer.caption(f"reply-{event.response_id}", event.text, event.final)
            case events.UserStartedSpeaking():
                self._segment += 1
                announcer.state("listening")
            case events.UserText():
                self._caption_user(event.text, final=False)
            case events.UserTurn():
                if not event.typed:  # the user's screen has shown what was typed
                    self._caption_user(event.text)
                announcer.state("thinking")
            case events.Backchannel():
                if event.text:
                    self._caption_user(event.text)
            case events.ReplyHeard() | events.Interrupted():
                announcer.state("listening")
            case events.TurnDone():
                self._record_turn(event.trace)
            case events.VoiceError():
                log.warning("voice: %s: %s", event.stage, event.message)
                if self._may_hear_of_it.take(event.stage):
                    announcer.notify(_TROUBLE.get(event.stage, _TROUBLE_THINKING))

    def _caption_user(self, text: str, final: bool = True) -> None:
        heard = self._microphone
        self._announcer.caption(f"user-{self._segment}", text, final, speaker=heard.speaker, track=heard.track)

    def _record_turn(self, trace: events.TurnTrace) -> None:
        if trace.speech_end is None:  # nobody asked: the greeting
            return
        stamps = {name: at for name, at in trace.stamps().items() if name != "speech_start"}
        self._figures.turn = (trace.first_heard or trace.speech_end) - trace.speech_end
        self._context.record_turn(Turn(self.response_id, dict(sorted(stamps.items(), key=lambda item: item[1]))))
