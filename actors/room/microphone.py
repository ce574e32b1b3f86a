"""The user's microphone, out of all the tracks of a room."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np

from actors.voice.protocols import HEARING_RATE
from actors.voice.tasks import Tasks

_FRAME_MS = 20
_WAITING_FRAMES = 100  # sound that may wait to be heard: two seconds, then the oldest is dropped


class Microphone:
    """Hears one microphone of the room. All methods belong to the room's event loop.

    That is the session's own user's if they have one, or else that of the participant who is heard already, or else
    that of the first to come. Of several tracks of one participant it is the newest that is not muted.

    Args:
        room: the SDK's, joined without automatic subscription.
        tasks: of the conversation.
        push_audio: takes int16 [n], mono at 16 kHz, as it comes.
        changed: called when `pending`, who is heard or who could be may have changed.
        user: identity of the session's own user; "" if it is not known.

    Attributes:
        track: sid of the track that is heard; None without one.
        speaker: identity of the participant who is heard, or was last.
    """

    def __init__(
        self,
        room: Any,
        tasks: Tasks,
        push_audio: Callable[[np.ndarray, int], None],
        changed: Callable[[], None],
        user: str = "",
    ) -> None:
        from livekit import rtc

        self.track: str | None = None
        self.speaker = ""
        self._rtc, self._room, self._tasks = rtc, room, tasks
        self._push_audio, self._changed, self._user = push_audio, changed, user
        self._chosen: str | None = None  # sid of the track that is heard, or will be when the server sends it
        self._stream: asyncio.Task[None] | None = None
        room.on("track_published", lambda publication, _: self._choose(publication))
        for event in ("track_unpublished", "track_muted", "track_unmuted", "participant_disconnected"):
            room.on(event, lambda *_: self._choose())
        room.on("track_subscribed", lambda track, _, who: self._hear(track, who.identity))
        room.on("track_unsubscribed", lambda track, *_: self._lose(track))
        asyncio.get_running_loop().call_soon(self._choose)

    @property
    def owners(self) -> list[str]:
        """Identities of all who have a microphone, in the order in which they came."""
        return [identity for identity, who in self._room.remote_participants.items() if self._microphones(who)]

    def pending(self) -> bool:
        """Whether somebody has a microphone, and none is heard yet."""
        return self._chosen is not None and self.track != self._chosen

    def _microphones(self, participant: Any) -> list[Any]:
        return [p for p in participant.track_publications.values() if p.kind == self._rtc.TrackKind.KIND_AUDIO]

    def _choose(self, published: Any = None) -> None:
        """Decide anew whom to hear. `published` has just been, perhaps again under its old sid."""
        owners, everybody = self.owners, self._room.remote_participants
        heard = next((who for who in (self._user, self.speaker, *owners) if who in owners), None)
        tracks = self._microphones(everybody[heard]) if heard is not None else []
        chosen = next((p for p in reversed(tracks) if not p.muted), tracks[-1] if tracks else None)
        before, self._chosen = self._chosen, chosen.sid if chosen is not None else None
        if self._chosen != before:
            for other in (p for who in everybody.values() for p in self._microphones(who) if p.sid == before):
                other.set_subscribed(False)
        if self.track != self._chosen:
            self._stop()
        if chosen is not None and (chosen.sid != before or chosen is published):
            self.speaker = heard or ""
            chosen.set_subscribed(True)
        self._changed()

    def _hear(self, track: Any, identity: str) -> None:
        if track.sid != self._chosen:  # another was chosen while the server was asked for this one
            return
        self._stop()
        self.track, self.speaker = track.sid, identity
        self._stream = self._tasks.spawn(self._read(track))
        self._changed()

    def _lose(self, track: Any) -> None:
        if track is not None and track.sid == self.track:
            self._stop()
            self._changed()

    def _stop(self) -> None:
        if self._stream is not None:
            self._stream.cancel()
        self.track = self._stream = None

    async def _read(self, track: Any) -> None:
        stream = self._rtc.AudioStream(
            track, sample_rate=HEARING_RATE, num_channels=1, frame_size_ms=_FRAME_MS, capacity=_WAITING_FRAMES
        )
        try:
            async for event in stream:
                self._push_audio(np.frombuffer(event.frame.data, np.int16), HEARING_RATE)
        finally:
            await stream.aclose()
