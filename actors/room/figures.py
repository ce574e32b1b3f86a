"""The figures of a session that its users may see."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from characters.chunk import Clock


class Figures:
    """Collects the figures of one session between two looks at them. All methods belong to one thread.

    Args:
        misses: counts the chunks that left late so far.
        response_id: of the newest reply.
        clock: of the model.

    Attributes:
        chunks: published so far.
        response_id: of the newest reply.
        turn: seconds from the end of the user's speech to the first sound of the answer, in the newest turn.
        render: seconds from the publisher to the user's eye, of the newest frames; None while no client tells.
    """

    def __init__(self, misses: Callable[[], int], response_id: int, clock: Clock) -> None:
        self.chunks = 0
        self.response_id = response_id
        self.turn = 0.0
        self.render: float | None = None
        self._misses, self._clock = misses, clock
        self._frames = 0  # since the last look
        self._work: list[float] = []  # seconds of work on each chunk since the last look
        self._looked = time.monotonic()

    def add_chunk(self, work: float, frames: int) -> None:
        """So many frames of a chunk have been published, on which model and decoder worked for `work` seconds."""
        self.chunks += 1
        self._frames += frames
        self._work.append(work)

    def take(self) -> dict[str, Any]:
        """The figures since the last look, as the page shows them; durations in milliseconds."""
        now, work = time.monotonic(), self._work
        seconds, self._looked, self._work = now - self._looked, now, []
        frames, self._frames = self._frames, 0
        return {
            "fps": round(frames / seconds, 1),
            "goal_fps": self._clock.fps,
            "chunk_ms": round(1000 * sum(work) / len(work), 1) if work else 0.0,
            "deadline_ms": round(1000 * self._clock.seconds, 1),
            "turn_ms": round(1000 * self.turn),
            "publish_to_render_ms": None if self.render is None else round(1000 * self.render),
            "late_chunks": self._misses(),
            "response_id": self.response_id,
        }
