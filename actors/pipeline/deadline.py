"""The policy for late chunks. It reads no clock: the caller passes the time.

A chunk is due one period after the chunk before it. While it is late, sound and picture hold together: the last frame
stays and no sound is consumed. The miss is counted, and the clock moves on by exactly the time lost, so that the next
chunk is due one period after the late one left. Nothing is skipped or hurried to catch up.
"""

from __future__ import annotations

# Seconds late that count as on time: the receiver's jitter buffer absorbs them, and the clock's grid stays.
GRACE = 0.01


class Deadline:
    """When chunks are due, and how many were late. All times are seconds on one monotonic clock.

    Args:
        period: seconds per chunk.
        grace: seconds late that count as on time.

    Attributes:
        chunks: that have left.
        misses: chunks that left late.
        lost: seconds by which the clock has moved on in all.
        longest: seconds of the longest hold.
    """

    def __init__(self, period: float, grace: float = GRACE) -> None:
        if period <= 0 or grace < 0:
            raise ValueError("period must be positive and grace not negative")
        self.period, self.grace = period, grace
        self.chunks = self.misses = 0
        self.lost = self.longest = 0.0
        self._cut = 0.0  # seconds that were cut away of chunks
        self._origin: float | None = None  # when chunk 0 left; later ones are due on its grid, lost and cut time apart

    def due(self, now: float) -> float:
        """When the next chunk is due. The first is due at once, at `now`."""
        return now if self._origin is None else self._origin + self.chunks * self.period + self.lost - self._cut

    def shorten(self, seconds: float) -> None:
        """The chunk that left last is over so much earlier than a whole one."""
        self._cut += seconds

    def leave(self, now: float) -> float:
        """The next chunk leaves at `now`.

        Returns:
            Seconds that it was late, by which the clock has moved on; 0 if it was on time.

        Raises:
            ValueError: the chunk leaves before it is due.
        """
        if self._origin is None:
            self._origin = now
        late = now - self.due(now)
        if late < -1e-6:  # 1 us for the rounding of the clock
            raise ValueError(f"the chunk leaves {-late:.6f} s before it is due")
        self.chunks += 1
        if late <= self.grace:
            return 0.0
        self.misses += 1
        self.lost += late
        self.longest = max(self.longest, late)
        return late
