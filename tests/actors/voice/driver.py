"""Drives a voice bridge in simulated time: waiting is skipped, computing is not, so that latencies are real ones."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from actors.voice.bridge import VoiceBridge
from actors.voice.config import VoiceConfig
from actors.voice.events import Cancelled, Event, ReplyAudio, ReplyMade, ReplyStarted
from actors.voice.parts import Parts
from characters.character import load_character
from characters.chunk import SAMPLE_RATE, SAMPLES_PER_CHUNK
from tests.actors.voice.sounds import noise

E = TypeVar("E")

BLOCK = SAMPLE_RATE // 50  # 20 ms, as a room delivers it


class SimulatedClock:
    """Real time plus the waiting that was skipped."""

    def __init__(self) -> None:
        self.skipped = 0.0

    def __call__(self) -> float:
        return time.perf_counter() + self.skipped


class Player:
    """Stands in for the aligner and the publisher: plays a response in chunks, drops cancelled ones at a border."""

    def __init__(self) -> None:
        self.response_id = -1
        self.sound = np.zeros(0, np.float32)
        self.played = 0
        self.made = False
        self.heard: list[np.ndarray] = []

    def take(self, event: Event) -> None:
        if isinstance(event, ReplyStarted):
            self.response_id, self.played, self.made = event.response_id, 0, False
            self.sound = np.zeros(0, np.float32)
        elif isinstance(event, ReplyAudio) and event.response_id == self.response_id:
            assert event.start == self.played + len(self.sound)
            self.sound = np.concatenate([self.sound, event.pcm])
        elif isinstance(event, ReplyMade) and event.response_id == self.response_id:
            self.made = True
        elif isinstance(event, Cancelled) and event.response_id == self.response_id:
            self.sound = np.zeros(0, np.float32)

    def chunk(self) -> tuple[int, int] | None:
        """Plays one chunk; (response_id, samples played of it) if there was anything to play."""
        if len(self.sound) < SAMPLES_PER_CHUNK and not (self.made and len(self.sound)):
            return None
        part, self.sound = self.sound[:SAMPLES_PER_CHUNK], self.sound[SAMPLES_PER_CHUNK:]
        self.played += len(part)
        self.heard.append(part)
        return self.response_id, self.played


class Driver:
    """A bridge with a user's microphone and loudspeaker."""

    def __init__(self, parts: Parts, config: VoiceConfig | None = None, character: str = "leila", **options) -> None:
        self.clock = SimulatedClock()
        self.player = Player()
        self.events: list[tuple[float, Event]] = []
        self.bridge = VoiceBridge(
            load_character(character).character, parts, self._emit, config, clock=self.clock, **options
        )
        self._ticks = 0

    def _emit(self, event: Event) -> None:
        self.events.append((self.clock(), event))
        self.player.take(event)

    async def hear(self, pcm: np.ndarray, until: Callable[[], bool] | None = None) -> None:
        """Feeds float32 [n] at 24 kHz, block by block; `until` is asked after each block."""
        for start in range(0, len(pcm), BLOCK):
            begin = self.clock()
            self.bridge.push_audio(pcm[start : start + BLOCK], SAMPLE_RATE)
            self._ticks += 1
            if self._ticks * BLOCK % SAMPLES_PER_CHUNK < BLOCK and (played := self.player.chunk()):
                self.bridge.report_played(*played)
            for _ in range(4):
                await asyncio.sleep(0)
            while (left := begin + BLOCK / SAMPLE_RATE - self.clock()) > 0:
                if not self.bridge.busy:
                    self.clock.skipped += left
                    break
                await asyncio.sleep(min(left, 0.002))
            if until is not None and until():
                return

    async def wait_for(self, kind: type[E], seconds: float = 20.0, count: int = 1) -> E:
        """Feeds room noise until `count` more events of a kind have come; returns the last of them."""
        before = len(self.of(kind))
        await self.hear(noise(seconds), until=lambda: len(self.of(kind)) >= before + count)
        found = self.of(kind)
        assert len(found) >= before + count, (
            f"no {kind.__name__}; there were {[type(e).__name__ for _, e in self.events]}"
        )
        return found[-1]

    async def quiet(self, seconds: float) -> None:
        """Feeds room noise."""
        await self.hear(noise(seconds))

    def of(self, kind: type[E]) -> list[E]:
        """All events of a kind so far."""
        return [event for _, event in self.events if isinstance(event, kind)]

    def names(self) -> list[str]:
        """The kinds of all events so far."""
        return [type(event).__name__ for _, event in self.events]
