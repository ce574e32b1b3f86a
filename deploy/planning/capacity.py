"""How many sessions of one profile a cluster holds. Nodes are as `ray.nodes()` describes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.pipeline.topology import Topology
from characters.errors import UserError
from characters.model.plan import ParallelPlan
from deploy.planning.cluster import cluster_of_ray
from deploy.planning.fleet import sessions_held
from deploy.planning.plan import judge, kept


@dataclass(frozen=True, slots=True)
class Capacity:
    """How many sessions a cluster holds.

    Attributes:
        sessions: at a time, each within its deadline.
        lacking: why that is none, whatever is started; None if it is not so.
        note: what one should know about the figure; "" for nothing.
    """

    sessions: int
    lacking: str | None = None
    note: str = ""


def capacity(
    topology: Topology, bundles: Sequence[Mapping[str, float]], nodes: Sequence[Mapping[str, Any]]
) -> Capacity:
    """How many sessions fit.

    Args:
        topology: of one session.
        bundles: resources of one pipeline, all on one host.
        nodes: see the module.

    Returns:
        No more than the hosts' resources allow, and then what the profile says or the planner finds. Where nobody has
        measured the model or the GPUs, the resources alone decide, and `note` says so.
    """
    profile, most = topology.profile, fitting(bundles, nodes)
    if profile.scaling.sessions:
        return Capacity(min(profile.scaling.sessions, most))
    name = Path(profile.model).stem
    # Processes that share a device take turns on it: to the planner they are one.
    plan = profile.plan if profile.device == "cuda" and profile.gpus == 1 else ParallelPlan(1, 1, 0)
    try:
        cluster = cluster_of_ray(nodes if profile.device == "cuda" else map(_without_gpus, nodes))
        verdicts = [judge(name, topology.model, plan, kind, cluster) for kind in cluster.rates]
    except UserError as error:
        return Capacity(most, note=f"the deadline is not checked: {error}")
    options = kept(verdicts)
    if verdicts and not options:
        return Capacity(0, "; ".join(f"on {v.kind} this plan is not admitted: {v.reason}" for v in verdicts))
    return Capacity(min(most, sum(sessions_held(cluster, option) for option in options)))


def fitting(bundles: Sequence[Mapping[str, float]], nodes: Iterable[Mapping[str, Any]]) -> int:
    """Groups of bundles that the hosts' resources hold, each group on one host."""
    need: dict[str, float] = {}
    for bundle in bundles:
        for key, amount in bundle.items():
            need[key] = need.get(key, 0.0) + amount
    resources = [node["Resources"] for node in nodes if node["Alive"]]
    return sum(min(int(there.get(key, 0.0) / amount + 1e-6) for key, amount in need.items()) for there in resources)


def _without_gpus(node: Mapping[str, Any]) -> dict[str, Any]:
    return {**node, "Resources": {key: amount for key, amount in node["Resources"].items() if key != "GPU"}}
