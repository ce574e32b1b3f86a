"""What a process offers to the roles that run in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from actors.pipeline.trace import Turn


@dataclass(frozen=True, slots=True)
class StageContext:
    """Handed to every role once, by `LoopRole.attach`. Every function may be called from any thread.

    Attributes:
        cancel: ends a response and older ones in every role of the session, the caller included.
        record_turn: enters a finished turn in the session's trace.
        record_render: enters there when a user saw a frame (see `Trace.add_render`).
    """

    cancel: Callable[[int], None]
    record_turn: Callable[[Turn], None]
    record_render: Callable[[int, float], float | None]
