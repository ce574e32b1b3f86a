"""A room without users, which records what is published: for tests and for measuring capacity."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

import numpy as np


class StubRoom:
    """An `Outlet` that records when frames and sound came.

    Args:
        capacity: events kept of either kind.
        clock: seconds.

    Attributes:
        video: (seconds, timestamp_us, mean of the luma, number) of each frame.
        audio: (seconds, samples, loudest magnitude) of each block of sound.
        sent_at: when it will have sent the sound that it has; tests set it.
        clears: how often `clear` was called.
        closed: whether `close` was called.
    """

    sound_lag = 0.0

    def __init__(self, capacity: int = 100_000, clock: Callable[[], float] = time.monotonic) -> None:
        self.video: deque[tuple[float, int, float, int]] = deque(maxlen=capacity)
        self.audio: deque[tuple[float, int, float]] = deque(maxlen=capacity)
        self.sent_at = 0.0
        self.clears = 0
        self.closed = False
        self._clock = clock

    def capture_video(self, frame: np.ndarray, timestamp_us: int, number: int) -> None:
        """See `Outlet.capture_video`."""
        self.video.append((self._clock(), timestamp_us, float(frame[: len(frame) * 2 // 3].mean()), number))

    def capture_audio(self, pcm: np.ndarray) -> None:
        """See `Outlet.capture_audio`."""
        self.audio.append((self._clock(), len(pcm), float(np.abs(pcm).max(initial=0.0))))

    def ahead(self) -> float:
        """See `Outlet.ahead`."""
        return max(0.0, self.sent_at - self._clock())

    def clear(self) -> None:
        """See `Outlet.clear`."""
        self.clears += 1

    def close(self) -> None:
        """See `Outlet.close`."""
        self.closed = True
