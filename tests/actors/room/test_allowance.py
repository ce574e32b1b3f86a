"""How often a participant may do something."""

from __future__ import annotations

from actors.room.allowance import Allowance


def test_a_burst_and_then_a_rate_for_each_participant() -> None:
    now = 100.0
    allowance = Allowance(burst=3, rate=2.0, clock=lambda: now)
    assert [allowance.take("ada") for _ in range(4)] == [True, True, True, False]
    assert allowance.take("bob"), "another's is another's"
    now += 0.5
    assert [allowance.take("ada") for _ in range(2)] == [True, False]
    now += 1000.0
    assert [allowance.take("ada") for _ in range(4)] == [True, True, True, False]


def test_it_remembers_few() -> None:
    allowance = Allowance(burst=1, rate=1.0)
    for number in range(1000):
        allowance.take(f"user-{number}")
    assert len(allowance._left) <= 100
