"""What there is to run on: nodes, their NVLink islands, their GPUs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from characters.errors import UserError
from deploy.planning.rates import Rates, load_rates

MAX_GPUS = 100_000
CPU_CORES = 2  # of one device in conf/gpus/CPU.yaml
ISLAND_LABEL = "characters/nvlink-island"  # a node's label: GPUs of each of its NVLink islands, e.g. "4"

_PART = re.compile(r"(?:(?:(\d+)x)?(\d+)x)?([A-Za-z][\w.-]*?)(?:/(\d+))?")


class Gpu(NamedTuple):
    """One GPU: its node, the number of its island there, and its own number in the island."""

    node: str
    island: int
    index: int  # type: ignore[assignment]  # hides the method of tuples, which nobody needs


@dataclass(frozen=True, slots=True)
class Node:
    """One host.

    Attributes:
        name: unique.
        kind: of its GPUs, as in conf/gpus; a CPU counts as one device.
        islands: GPUs of each NVLink island.
    """

    name: str
    kind: str
    islands: tuple[int, ...]

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return sum(self.islands)


@dataclass(frozen=True)
class Cluster:
    """All hosts, and how fast each kind of GPU among them is.

    Attributes:
        nodes: the hosts.
        rates: by kind.
    """

    nodes: tuple[Node, ...]
    rates: Mapping[str, Rates]

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return sum(node.gpus for node in self.nodes)

    def __str__(self) -> str:
        counts = Counter((node.kind, node.islands) for node in self.nodes)
        return ", ".join(
            f"{n} node(s) of {sum(islands)} {kind} in {len(islands)} island(s)" for (kind, islands), n in counts.items()
        )


def parse_cluster(text: str, known: Mapping[str, Rates] | None = None) -> Cluster:
    """Read a cluster from a line such as "8xH200", "3x8xH200/4" (3 nodes, islands of 4), "8xH100+2x4xA100" or "CPU".

    Args:
        text: parts [[NODESx]GPUSx]KIND[/ISLAND], joined by "+"; without ISLAND the kind's own.
        known: rates that are not in conf/gpus, by lower-case kind; they come first.

    Raises:
        UserError: not such a line, an unknown kind, no GPU, or islands that do not divide a node.
    """
    nodes: list[Node] = []
    rates: dict[str, Rates] = {}
    for part in text.split("+"):
        found = _PART.fullmatch(part.strip())
        if found is None:
            raise UserError(f"{part.strip()!r} is no description of GPUs; write 8xH200, or 3x8xH200 for three nodes")
        hosts, gpus = int(found[1] or 1), int(found[2] or 1)
        kind = (known or {}).get(found[3].lower()) or load_rates(found[3])
        if hosts < 1 or gpus < 1:
            raise UserError(f"{part.strip()!r} has no GPU in it")
        if hosts * gpus > MAX_GPUS:
            raise UserError(f"{part.strip()!r} has more than {MAX_GPUS:,} GPUs")
        size = int(found[4]) if found[4] else min(int(kind.island.value), gpus)
        if size < 1 or gpus % size:
            raise UserError(f"{part.strip()!r}: islands of {size} do not divide {gpus} GPUs")
        rates[kind.name] = kind
        first = len(nodes)
        nodes += [Node(f"node{first + i}", kind.name, (size,) * (gpus // size)) for i in range(hosts)]
    return Cluster(tuple(nodes), rates)


def cluster_of_ray(nodes: Iterable[Mapping[str, Any]]) -> Cluster:
    """A cluster from what `ray.nodes()` answers: hosts that are alive and have GPUs, or, if none has, pairs of CPUs.

    A host's kind is its `accelerator_type:KIND` resource; its label `ISLAND_LABEL` overrides the kind's own islands.

    Raises:
        UserError: a host's GPUs are of a kind that conf/gpus does not know, or islands that do not divide its GPUs.
    """
    found: list[Node] = []
    rates: dict[str, Rates] = {}
    alive = [node for node in nodes if node["Alive"]]
    for node in alive:
        gpus = int(node["Resources"].get("GPU", 0))
        types = [key.partition(":")[2] for key in node["Resources"] if key.startswith("accelerator_type:")]
        if gpus < 1:
            continue
        kind = load_rates(types[0] if types else "unknown")
        label = str(node.get("Labels", {}).get(ISLAND_LABEL) or min(int(kind.island.value), gpus))
        size = int(label) if label.isdecimal() else 0
        if size < 1 or gpus % size:
            what = f"its label {ISLAND_LABEL} must be the GPUs of an island, a number that divides {gpus}"
            raise UserError(f"node {node['NodeID']}: {what}, not {label!r}")
        rates[kind.name] = kind
        found.append(Node(node["NodeID"], kind.name, (size,) * (gpus // size)))
    if not found:
        cpu = load_rates("CPU")
        rates[cpu.name] = cpu
        pairs = {node["NodeID"]: max(int(node["Resources"].get("CPU", 0)) // CPU_CORES, 1) for node in alive}
        found = [Node(name, cpu.name, (1,) * count) for name, count in pairs.items()]
    return Cluster(tuple(found), rates)
