"""What the publisher needs of a room, whoever carries it."""

from __future__ import annotations

from typing import Protocol

import numpy as np


class Outlet(Protocol):
    """A room that has been joined. Its methods return at once; one thread calls them, but `clear` may come from any.

    Attributes:
        sound_lag: seconds that sound takes longer than a picture to leave, even if none is waiting before it.
    """

    sound_lag: float

    def capture_video(self, frame: np.ndarray, timestamp_us: int, number: int) -> None:
        """Show a frame.

        Args:
            frame: uint8 [H * 3 / 2, W], I420 (see i420); valid during the call.
            timestamp_us: when it leaves, microseconds of `time.monotonic`.
            number: of the frame in the session, 4 to a chunk; travels with it to whoever sees it.
        """

    def capture_audio(self, pcm: np.ndarray) -> None:
        """Play float32 [n] samples, mono at 24 kHz, after those before; valid during the call."""

    def ahead(self) -> float:
        """Seconds of sound that were captured but have not been sent."""

    def clear(self) -> None:
        """Forget sound that was captured but has not been sent."""

    def close(self) -> None:
        """Leave."""
