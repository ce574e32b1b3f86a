"""A clock that tests turn by hand."""

from __future__ import annotations


class Clock:
    """Seconds; call it for the time."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
