"""What a conversation tells its room: captions, notices, what the character is doing, and figures."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable
from typing import Any, Literal

from actors.room.reliable_text import Outbox, ReliableMessage
from actors.voice.tasks import Tasks

log = logging.getLogger(__name__)

CAPTIONS, NOTICES, FIGURES = "lk.transcription", "characters.notice", "characters.figures"
STATE = "lk.agent.state"  # attribute of the character's participant: an AgentState
HEARS = "characters.hears"  # attribute of the character's participant: identity of the one it hears; "" for nobody
_SEND_SECONDS = 5.0
_FIGURES_SECONDS = 1.0

AgentState = Literal["initializing", "listening", "thinking", "speaking"]


class Announcer:
    """Tells one room. All methods belong to the room's event loop.

    Args:
        room: the SDK's, joined.
        tasks: of the conversation.
        hears: whether a microphone that is to be heard is heard; whose it is.
        figures: makes the JSON object that is sent once a second.
        plain: whether captions go out as JSON packets, too, for clients that know no text streams.
    """

    def __init__(
        self,
        room: Any,
        tasks: Tasks,
        hears: Callable[[], tuple[bool, str]],
        figures: Callable[[], dict[str, Any]],
        plain: bool = False,
    ) -> None:
        self._room, self._hears, self._make_figures = room, hears, figures
        self._tasks, self._plain = tasks, plain
        self._outbox = Outbox(room)
        self._state: AgentState = "listening"
        self._still = False
        self._changed = asyncio.Event()
        room.on("reconnected", self.refresh)  # a media server that was started again has forgotten the state
        for work in (self._outbox.run(), self._send_state(), self._send_figures()):
            tasks.spawn(work)
        self.refresh()

    def caption(
        self, segment: str, text: str, final: bool, *, speaker: str | None = None, track: str | None = None
    ) -> None:
        """Show what was said so far: the whole text, which replaces the segment's text before it.

        Args:
            segment: id of the text.
            text: whole; an empty one is sent only to end the segment.
            final: whether it is the segment's last, which must arrive.
            speaker: identity of the user who said it; None for the character.
            track: sid of the track that it was said in, if there is one.
        """
        if not text and not final:
            return
        if self._plain and text:
            identity = speaker or self._room.local_participant.identity
            about = {"id": segment, "text": text, "final": final, "participantIdentity": identity}
            self._tasks.spawn(self._send_plain({"type": "transcription", "segments": [about]}))
        attributes = {"lk.segment_id": segment, "lk.transcription_final": "true" if final else "false"}
        if track is not None:
            attributes["lk.transcribed_track_id"] = track
        self._outbox.put(ReliableMessage(CAPTIONS, text, attributes, speaker, certain=final))

    async def _send_plain(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(Exception):  # without a connection; the text stream is the one that must arrive
            async with asyncio.timeout(_SEND_SECONDS):
                await self._room.local_participant.publish_data(json.dumps(message), reliable=True)

    def notify(self, text: str) -> None:
        """Tell the user something about the session."""
        self._outbox.put(ReliableMessage(NOTICES, text, {}, certain=True))

    def state(self, state: AgentState) -> None:
        """The character is doing something else now."""
        self._state = state
        self.refresh()

    def still(self, still: bool) -> None:
        """Whether the picture stands still: whoever shows no face does not speak, whatever was meant to be said."""
        self._still = still
        self.refresh()

    def refresh(self) -> None:
        """Send the state again: the room may not have it, or `hears` may have changed."""
        self._changed.set()

    async def _send_state(self) -> None:
        """As an attribute of the participant; "initializing" while the picture stands, or until the character hears."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            ready, heard = self._hears()
            waiting = self._still or (self._state == "listening" and not ready)
            state = "initializing" if waiting else self._state
            try:
                async with asyncio.timeout(_SEND_SECONDS):
                    await self._room.local_participant.set_attributes({STATE: state, HEARS: heard})
            except Exception as error:  # without a connection; `reconnected` sends it again
                log.warning("cannot send the character's state to the room: %r", error)

    async def _send_figures(self) -> None:
        while True:
            await asyncio.sleep(_FIGURES_SECONDS)
            with contextlib.suppress(Exception):  # lost figures must end neither a conversation nor the figures
                figures = json.dumps(self._make_figures(), allow_nan=False)
                async with asyncio.timeout(_SEND_SECONDS):
                    await self._room.local_participant.publish_data(figures, reliable=False, topic=FIGURES)
