"""The late-chunk policy, on a clock that the tests move."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from actors.pipeline.deadline import GRACE, Deadline
from characters.chunk import CHUNK_SECONDS


def test_the_first_chunk_sets_the_clock() -> None:
    deadline = Deadline(1.0)
    assert deadline.due(5.0) == 5.0
    assert deadline.leave(5.0) == 0.0
    assert deadline.due(5.0) == deadline.due(99.0) == 6.0


def test_on_time_keeps_the_grid_whatever_the_jitter() -> None:
    deadline = Deadline(1.0, grace=0.125)
    for i, jitter in enumerate([0.0, 0.0625, 0.0, 0.125, 0.05, 0.001]):
        assert deadline.due(0.0) == i
        assert deadline.leave(i + jitter) == 0.0
    assert (deadline.chunks, deadline.misses, deadline.lost) == (6, 0, 0.0)


def test_a_late_chunk_moves_the_clock_by_exactly_the_time_lost() -> None:
    deadline = Deadline(1.0, grace=0.1)
    deadline.leave(0.0)
    assert deadline.leave(1.75) == 0.75
    assert deadline.due(0.0) == 2.75
    assert deadline.leave(2.75) == 0.0
    assert deadline.leave(4.0) == 0.25
    assert deadline.due(0.0) == 5.0
    assert (deadline.chunks, deadline.misses, deadline.lost, deadline.longest) == (4, 2, 1.0, 0.75)


def test_a_chunk_never_leaves_early() -> None:
    deadline = Deadline(1.0)
    deadline.leave(0.0)
    with pytest.raises(ValueError, match="before it is due"):
        deadline.leave(0.9)
    assert deadline.chunks == 1
    assert deadline.leave(1.0) == 0.0


@pytest.mark.parametrize("period, grace", [(0.0, 0.1), (-1.0, 0.1), (1.0, -0.1)])
def test_bad_arguments(period: float, grace: float) -> None:
    with pytest.raises(ValueError):
        Deadline(period, grace)


def test_every_pattern_of_six_chunks() -> None:
    """All ways to be on time, jittery, a little late or very late: the invariants hold for each."""
    for pattern in itertools.product([0.0, 0.0625, 0.5, 2.5], repeat=5):
        deadline, now, lost = Deadline(1.0, grace=0.125), 10.0, 0.0
        deadline.leave(now)
        for i, lateness in enumerate(pattern, 1):
            due = deadline.due(now)
            assert due == 10.0 + i + lost
            now = due + lateness
            late = deadline.leave(now)
            assert late == (lateness if lateness > 0.125 else 0.0)
            lost += late
        assert deadline.lost == lost
        assert deadline.misses == sum(lateness > 0.125 for lateness in pattern)
        # Sound that was played and time that was lost are all the time there was, to within the grace.
        assert 0 <= now - 10.0 - (5 + deadline.lost) <= 0.125


def test_no_drift_in_a_day() -> None:
    deadline, noise = Deadline(CHUNK_SECONDS), np.random.default_rng(0)
    chunks = 24 * 3600 * 6
    late = noise.random(chunks) < 1e-4
    for is_late in late[: chunks // 4]:
        due = deadline.due(0.0)
        deadline.leave(due + (0.05 if is_late else noise.random() * GRACE / 2))
    expected = (chunks // 4) * CHUNK_SECONDS + 0.05 * deadline.misses
    assert deadline.misses == late[: chunks // 4].sum()
    assert deadline.due(0.0) == pytest.approx(expected, abs=1e-2)
