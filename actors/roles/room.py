"""What the publisher needs of a room, whoever carries it."""

from __future__ import annotations

from typing import Protocol

import numpy as np


class Room(Protocol):
    """A room that has been joined. Its methods return at once; one thread calls them, but `clear` may come from any."""

    def capture_video(self, frame: np.ndarray, timestamp_us: int) -> None:
        """Show a frame.

        Args:
            frame: uint8 [H * 3 / 2, W], I420 (see i420); valid during the call.
            timestamp_us: when it was due, microseconds of `time.monotonic`.
        """

    def capture_audio(self, pcm: np.ndarray) -> None:
        """Play float32 [n] samples, mono at 24 kHz, after those before; valid during the call."""

    def clear(self) -> None:
        """Forget sound that was captured but has not been sent."""

    def close(self) -> None:
        """Leave."""
