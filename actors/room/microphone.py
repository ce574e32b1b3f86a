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
    """Subscribes to every audio track of the room and hears the newest. All methods belong to the room's event loop.

    Args:
        room: the SDK's, joined without automatic subscription.
        tasks: of the conversation.
        push_audio: takes int16 [n], mono at 16 kHz, as it comes.
        changed: called when `pending` or what is heard may have changed.

    Attributes:
        track: sid of the track that is heard; None without one.
        speaker: identity of the participant who is heard, or was last.
    """

    def __init__(
        self, room: Any, tasks: Tasks, push_audio: Callable[[np.ndarray, int], None], changed: Callable[[], None]
    ) -> None:
        from livekit import rtc

        self.track: str | None = None
        self.speaker = ""
        self._rtc, self._room, self._tasks = rtc, room, tasks
        self._push_audio, self._changed = push_audio, changed
        self._stream: asyncio.Task[None] | None = None
        room.on("track_published", lambda publication, _: self._subscribe(publication))
        room.on("track_unpublished", lambda *_: changed())
        room.on("track_subscribed", lambda track, _, who: self._hear(track, who.identity))
        room.on("track_unsubscribed", lambda track, *_: self._lose(track.sid))
        for publication in self._publications():
            self._subscribe(publication)

    def pending(self) -> bool:
        """Whether somebody has a microphone that is not heard yet."""
        return any(not publication.subscribed for publication in self._publications() if self._is_audio(publication))

    def _publications(self) -> list[Any]:
        return [p for who in self._room.remote_participants.values() for p in who.track_publications.values()]

    def _is_audio(self, track: Any) -> bool:
        return bool(track.kind == self._rtc.TrackKind.KIND_AUDIO)

    def _subscribe(self, publication: Any) -> None:
        if self._is_audio(publication):
            publication.set_subscribed(True)
            self._changed()

    def _hear(self, track: Any, identity: str) -> None:
        """Hear this track, and no other: the newest microphone is the user's."""
        if not self._is_audio(track):
            return
        if self._stream is not None:
            self._stream.cancel()
        self.track, self.speaker = track.sid, identity
        self._stream = self._tasks.spawn(self._read(track))
        self._changed()

    def _lose(self, sid: str) -> None:
        if self.track == sid and self._stream is not None:
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
