"""The room's process without Ray and without a model: a conversation with a grey picture."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from types import TracebackType
from typing import Any

import numpy as np
import torch

from actors.channels.protocol import ChannelAborted
from actors.pipeline.context import StageContext
from actors.pipeline.header import Header
from actors.pipeline.session import RoomAddress, SessionSpec
from actors.pipeline.trace import Turn
from actors.roles.aligner import AudioAligner
from actors.room.livekit import LivekitRoom
from actors.room.talking import TalkingPublisher
from actors.voice.config import VoiceConfig
from actors.voice.parts import OpenParts
from characters.character import load_character
from characters.chunk import Clock
from characters.generate.hearing import MelHearing
from deploy.serving.records import Run
from deploy.serving.session_manager import Replicas
from deploy.serving.settings import LivekitAccess
from deploy.serving.tokens import character_token

HEIGHT, WIDTH = 64, 48


class LightPipelines:
    """See `deploy.serving.session_manager.Pipelines`: sessions with a room's process alone, in threads of this one."""

    def __init__(self, count: int, parts: OpenParts) -> None:
        self._count, self._parts = count, parts
        self.rooms: list[LightRoom] = []

    async def look(self) -> Replicas:
        """All are ready."""
        ready = frozenset(map(str, range(self._count)))
        return Replicas(ready, ready, target=self._count, capacity=self._count)

    async def run(self, session: SessionSpec) -> AsyncIterator[Run]:
        """As `Pipeline.session` does it."""
        light = LightRoom.of(session, self._parts)
        await asyncio.to_thread(light.__enter__)
        self.rooms.append(light)
        try:
            yield Run("0", "running", "started")
            while not (reason := light.publisher.ended()):
                await asyncio.sleep(0.1)
            yield Run("0", "stopped", reason)
        finally:
            await asyncio.to_thread(light.__exit__, None, None, None)
            self.rooms.remove(light)

    async def trace(self, room: str) -> dict[str, Any]:
        """There is none."""
        return {"traceEvents": []}


class LightRoom:
    """Runs aligner and publisher in a thread, as the stage's loops would.

    Args:
        access, room: where.
        slug: of the character.
        parts: of its voice.
        avatar: its own token and its agent's identity, if it speaks for an agent and has no voice.
    """

    def __init__(
        self,
        access: LivekitAccess,
        room: str,
        slug: str,
        parts: OpenParts,
        avatar: tuple[str, str] | None = None,
    ) -> None:
        character = load_character(slug).character
        token, agent = avatar or (character_token(access, room, slug, character.name), None)
        address = RoomAddress("livekit", access.url, token, agent=agent)
        self._session = SessionSpec(np.zeros((HEIGHT, WIDTH, 3), np.uint8), room=address, character=character)
        self._make(parts)

    @classmethod
    def of(cls, session: SessionSpec, parts: OpenParts) -> LightRoom:
        """For a session of the application."""
        made = cls.__new__(cls)
        made._session = session
        made._make(parts)
        return made

    def _make(self, parts: OpenParts) -> None:
        self.turns: list[Turn] = []
        self.aligner = AudioAligner(Clock(), MelHearing())
        self.publisher = TalkingPublisher(
            lambda session: LivekitRoom(session.room, HEIGHT, WIDTH, 24), self.aligner, parts, VoiceConfig(), 3
        )
        self.publisher.attach(StageContext(self._cancel, self.turns.append, lambda frame, at: None))
        self._cancelled = -1
        self._stop = threading.Event()
        self._thread = threading.Thread()

    def __enter__(self) -> LightRoom:
        self._begin({})
        return self

    def reborn(self) -> None:
        """As after the death of the process: what is left is what a snapshot holds."""
        state = self.publisher.snapshot()
        self._stop.set()
        self._thread.join()
        self._begin(state)

    def _begin(self, state: dict[str, Any]) -> None:
        self._stop.clear()
        self.publisher.reset(self._session)
        if state:
            self.publisher.restore(state)
        self.publisher.connect("")
        self._thread = threading.Thread(target=self._run, name="light room", daemon=True)
        self._thread.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()
        self.publisher.close()

    def _cancel(self, response_id: int) -> None:
        self._cancelled = max(self._cancelled, response_id)
        self.aligner.cancel(response_id)
        self.publisher.cancel(response_id)

    def _run(self) -> None:
        frames = torch.full((4, HEIGHT * 3 // 2, WIDTH), 128, dtype=torch.uint8)
        while not self._stop.is_set():
            header, outputs = self.aligner.step(None, {})
            if header.cancelled_by(self._cancelled):
                continue
            header = replace(header, stamps=Header(0, 0).stamps).stamped(1, 1.0, 1.05)
            try:
                self.publisher.step(header, {"frames": frames, "pcm": outputs["pcm"]})
            except ChannelAborted:
                return
