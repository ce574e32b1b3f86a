"""The figures that a room is told."""

from __future__ import annotations

import time

import pytest

from actors.room.figures import Figures


def test_figures_are_of_the_time_since_the_last_look(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    figures = Figures(lambda: 3, response_id=7)
    for work in (0.05, 0.07, 0.06):
        figures.add_chunk(work)
    figures.turn, figures.render = 0.91, 0.0234
    now = 100.5
    assert figures.take() == {
        "fps": 24.0,
        "chunk_ms": 60.0,
        "turn_ms": 910,
        "publish_to_render_ms": 23,
        "late_chunks": 3,
        "response_id": 7,
    }
    figures.render, now = None, 101.5
    later = figures.take()
    assert (later["fps"], later["chunk_ms"], later["publish_to_render_ms"]) == (0.0, 0.0, None)
    assert figures.chunks == 3
