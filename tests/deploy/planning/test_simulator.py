from __future__ import annotations

import numpy as np
import pytest

from deploy.planning.cluster import parse_cluster
from deploy.planning.simulator import Load, Policy, Report, Simulation
from deploy.planning.waiting import AdmissionConfig
from tests.deploy.planning.known import LARGE, option, small


def simulate(
    gpus: str, load: Load, mix: dict[str, float], seed: int = 0, queue: int = 50, policy: Policy | None = None
) -> Report:
    policy = policy or Policy()
    four, five = option(3, 1, 1), option(1, 4, 1)
    options = {LARGE: [five] if policy.across_nodes else [four], "small": [small()]}
    settings = AdmissionConfig(queue=queue)
    report = Simulation(parse_cluster(gpus), options, settings, load, mix, seed, policy).run()
    print(report)
    return report


@pytest.mark.parametrize("across_nodes", [False, True])
def test_a_thousand_sessions_on_four_thousand_gpus(across_nodes: bool) -> None:
    """More want to come in than there is room for, and a host fails about every three minutes."""
    load = Load(sessions=1060, length=240, seconds=900, failures=90_000, repair=300)
    report = simulate("500x8xH200", load, {LARGE: 1.0}, queue=100, policy=Policy(across_nodes))
    assert report.most > (790 if across_nodes else 990)
    assert np.percentile(report.planning, 99) <= 50
    assert report.stranded <= 0.01
    assert report.worst <= 1
    assert report.moved + report.displaced > 0
    assert report.queued > 0
    assert report.left == 0


def test_small_and_large_sessions_side_by_side() -> None:
    load = Load(sessions=400, length=120, seconds=1200, failures=20_000, repair=200)
    report = simulate("20x8xH200", load, {LARGE: 1.0, "small": 9.0}, seed=3)
    assert report.stranded <= 0.01
    assert report.worst <= 1
    assert report.left == 0


def test_the_same_seed_gives_the_same_run() -> None:
    load = Load(sessions=20, length=60, seconds=600, failures=3000)
    first, second = (simulate("4x8xH200", load, {LARGE: 1.0}, seed=9) for _ in range(2))
    first.planning = second.planning = []
    assert first == second


def test_a_waiting_user_waits_about_as_long_as_a_seat_takes_to_come_free() -> None:
    """12 seats, each free every 100 s: one comes free every 8 s."""
    report = simulate("6x8xH200", Load(sessions=14, length=100, seconds=20_000), {LARGE: 1.0}, seed=1)
    assert 5 < np.median(report.waits) < 200
    assert report.used > 0.9
