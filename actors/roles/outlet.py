"""What the publisher needs of a room, whatever technology carries it."""

from __future__ import annotations

from typing import Protocol

import numpy as np


class Outlet(Protocol):
    """A room that has been joined. One thread calls its methods, which return at once; any thread may call `clear`.

    Attributes:
        sound_lag: seconds by which sound leaves later than a frame, even if no other sound waits.
    """

    sound_lag: float

    def capture_video(self, frame: np.ndarray, timestamp_us: int, number: int) -> None:
        """Publish a frame.

        Args:
            frame: uint8 [H * 3 / 2, W], I420 (see kernels.i420); valid during the call.
            timestamp_us: when it leaves, in microseconds of `time.monotonic`.
            number: of the frame in the session. It travels with the frame to the clients.
        """

    def capture_audio(self, pcm: np.ndarray) -> None:
        """Publish float32 [n] samples, mono at 24 kHz, after the samples before; valid during the call."""

    def ahead(self) -> float:
        """Seconds of captured sound that have not been sent."""

    def clear(self) -> None:
        """Drop captured sound that has not been sent."""

    def close(self) -> None:
        """Leave the room."""
