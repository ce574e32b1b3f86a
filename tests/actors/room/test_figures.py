"""The figures that a room is told."""

from __future__ import annotations

import time

import pytest

from actors.room.figures import Figures
from characters.chunk import Clock


def test_figures_are_of_the_time_since_the_last_look(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    figures = Figures(lambda: 3, 7, Clock(25, 28))
    for work, frames in ((0.05, 28), (0.07, 3), (0.06, 28)):
        figures.add_chunk(work, frames)
    figures.turn, figures.render = 0.91, 0.0234
    now = 102.36
    assert figures.take() == {
        "fps": 25.0,
        "goal_fps": 25,
        "chunk_ms": 60.0,
        "deadline_ms": 1120.0,
        "turn_ms": 910,
        "publish_to_render_ms": 23,
        "late_chunks": 3,
        "response_id": 7,
    }
    figures.render, now = None, 103.5
    later = figures.take()
    assert (later["fps"], later["chunk_ms"], later["publish_to_render_ms"]) == (0.0, 0.0, None)
    assert figures.chunks == 3
