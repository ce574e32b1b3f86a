from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from actors.pipeline.topology import Scaling, Topology, load_profile, plan_topology
from characters.model.plan import ParallelPlan
from deploy.planning.capacity import capacity, fitting
from deploy.planning.cluster import ISLAND_LABEL

REPLICA = {"CPU": 0.05}


def node(name: str, island: int = 0, alive: bool = True, **resources: float) -> dict[str, Any]:
    labels = {ISLAND_LABEL: str(island)} if island else {}
    return {"NodeID": name, "Alive": alive, "Resources": resources, "Labels": labels}


def hosts(count: int, island: int = 4) -> list[dict[str, Any]]:
    return [node(str(i), island, GPU=8.0, CPU=64.0, **{"accelerator_type:H200": 1.0}) for i in range(count)]


def planned(name: str, pipeline: int = 3, sequence: int = 1, **changes: Any) -> Topology:
    profile = load_profile(name)
    plan = ParallelPlan(pipeline, sequence, 1) if name != "laptop" else profile.plan
    return plan_topology(replace(profile, plan=plan, **changes))


def held(topology: Topology, nodes: list[dict[str, Any]]) -> Any:
    return capacity(topology, [REPLICA, *topology.bundles], nodes)


def test_three_hosts_of_two_islands_hold_six() -> None:
    topology = planned("h200x4")
    assert held(topology, hosts(3)).sessions == 6
    assert held(topology, [*hosts(2), node("gone", 4, alive=False, GPU=8.0)]).sessions == 4


def test_a_plan_that_misses_the_deadline_is_not_admitted_and_the_reason_is_told() -> None:
    found = held(planned("h200x4", pipeline=2), hosts(3))
    assert found.sessions == 0
    assert found.lacking is not None
    assert "too slow" in found.lacking


def test_a_number_that_is_fixed_counts_as_far_as_the_resources_go() -> None:
    fixed = planned("h200x4", pipeline=2, scaling=Scaling(sessions=4))
    assert held(fixed, hosts(3)).sessions == 4
    assert held(fixed, hosts(1)).sessions == 2


def test_a_machine_without_gpus_counts_its_cores() -> None:
    assert [held(planned("laptop"), [node("a", CPU=float(cores))]).sessions for cores in (1, 2, 8)] == [1, 1, 4]


def test_where_nobody_has_measured_the_resources_decide() -> None:
    unknown = [node("a", GPU=8.0, CPU=64.0, **{"accelerator_type:X1": 1.0})]
    found = held(planned("h200x4"), unknown)
    assert (found.sessions, found.lacking) == (2, None)
    assert "the deadline is not checked: there is no kind of GPU" in found.note


@pytest.mark.parametrize(("cpus", "count"), [(0.04, 0), (0.6, 1), (1.1, 2)])
def test_all_of_a_pipeline_is_on_one_host(cpus: float, count: int) -> None:
    bundles = [REPLICA, {"CPU": 0.25}, {"CPU": 0.25}]
    assert fitting(bundles, [node("a", CPU=cpus), node("b", CPU=0.3)]) == count
