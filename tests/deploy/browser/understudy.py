"""A character that needs no model: it shows the portrait, repeats what is typed, and moves its mouth with its tone."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import torch

from actors.pipeline.session import SessionSpec
from actors.room.livekit import LivekitRoom
from actors.room.reliable_text import Inbox, Outbox, ReliableMessage
from characters.chunk import FPS, SAMPLE_RATE
from characters.errors import UserError
from deploy.serving.records import Run
from deploy.serving.session_manager import Replicas
from kernels.i420 import rgb_to_i420

_SAMPLES = SAMPLE_RATE // FPS
_LETTER_SECONDS = 0.06


class Understudies:
    """See `deploy.serving.session_manager.Pipelines`. `absent`: nobody comes."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.absent = False

    async def look(self) -> Replicas:
        return Replicas(frozenset(map(str, range(self._count))), target=self._count, capacity=self._count)

    async def run(self, session: SessionSpec) -> AsyncIterator[Run]:
        if self.absent:
            await asyncio.Event().wait()
        understudy = Understudy(session)
        try:
            yield Run("0", "running", "started")
            await asyncio.Event().wait()
        finally:
            await asyncio.to_thread(understudy.close)

    async def trace(self, room: str) -> dict[str, Any]:
        return {"traceEvents": []}

    async def stay(self) -> bool:
        return False


class Understudy:
    def __init__(self, session: SessionSpec) -> None:
        assert session.character is not None
        self._session, self._character = session, session.character
        still = session.portrait.copy()
        speaking = still.copy()
        speaking[165:185, 72:104] = (60, 10, 20)
        self._frames = rgb_to_i420(torch.from_numpy(np.stack((still, speaking)))).numpy()
        self._line, self._since, self._segment, self._greeted = "", 0.0, 0, False
        self._frozen_until = 0.0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._play)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _play(self) -> None:
        while not self._closed.is_set():
            try:
                room = LivekitRoom(self._session.room, *self._session.portrait.shape[:2], FPS)
            except UserError:  # the server is not back yet
                self._closed.wait(0.5)
                continue
            try:
                asyncio.run_coroutine_threadsafe(self._enter(room), room.loop).result()
                self._perform(room)
            except ConnectionError:
                pass
            finally:
                room.loop.call_soon_threadsafe(self._posting.cancel)
                room.close()

    async def _enter(self, room: LivekitRoom) -> None:
        inbox, self._outbox = Inbox(room.room), Outbox(room.room)
        self._posting = asyncio.ensure_future(self._outbox.run())

        async def heard(reader: Any) -> None:
            if text := await inbox.read(reader):
                self._say(room, f"You wrote: {text}")
                self._frozen_until = time.monotonic() + 4.0 * ("freeze" in text)

        async def quiet(_: Any) -> str:
            self._finish(room, int((time.monotonic() - self._since) / _LETTER_SECONDS))
            return "ok"

        me = room.room.local_participant
        room.room.register_text_stream_handler("lk.chat", lambda reader, _: asyncio.ensure_future(heard(reader)))
        me.register_rpc_method("interrupt", quiet)
        room.room.on("reconnected", lambda: self._attribute("listening", room))
        self._attribute("listening", room)

    def _perform(self, room: LivekitRoom) -> None:
        begin = time.monotonic()
        frame = 0
        while not self._closed.wait(max(0.0, begin + frame / FPS - time.monotonic())):
            while time.monotonic() < self._frozen_until:  # as a process that hangs, in the midst of speaking
                time.sleep(0.05)
                begin += 0.05
            if frame % FPS == 0:
                self._once_a_second(room)
            letters = int((time.monotonic() - self._since) / _LETTER_SECONDS)
            if self._line and letters > len(self._line):
                room.loop.call_soon_threadsafe(self._finish, room, len(self._line))
            speaking = bool(self._line)
            times = np.arange(_SAMPLES) / SAMPLE_RATE
            room.capture_audio((0.1 * speaking * np.sin(2 * np.pi * 240 * times)).astype(np.float32))
            room.capture_video(self._frames[int(speaking and frame // 3 % 2)], int(time.monotonic() * 1e6), frame)
            if speaking and frame % 6 == 0:
                room.loop.call_soon_threadsafe(self._caption, self._line[:letters], False)
            frame += 1

    def _once_a_second(self, room: LivekitRoom) -> None:
        figures = {"fps": 24.0, "chunk_ms": 82.4, "turn_ms": 910, "late_chunks": 0, "response_id": self._segment}
        send = room.room.local_participant.publish_data(json.dumps(figures), topic="characters.figures")
        asyncio.run_coroutine_threadsafe(send, room.loop)
        if not self._greeted and room.room.remote_participants:
            self._greeted = True
            room.loop.call_soon_threadsafe(self._say, room, self._character.greeting)

    def _say(self, room: LivekitRoom, text: str) -> None:
        self._segment += 1
        self._line, self._since = text, time.monotonic()
        self._attribute("speaking", room)

    def _finish(self, room: LivekitRoom, letters: int) -> None:
        if self._line:
            self._caption(self._line[:letters], True)
            self._line = ""
            self._attribute("listening", room)

    def _attribute(self, state: str, room: LivekitRoom) -> None:
        self._told = asyncio.ensure_future(room.room.local_participant.set_attributes({"lk.agent.state": state}))

    def _caption(self, text: str, final: bool) -> None:
        attributes = {"lk.segment_id": f"reply-{self._segment}", "lk.transcription_final": str(final).lower()}
        self._outbox.put(ReliableMessage("lk.transcription", text, attributes, certain=final))
