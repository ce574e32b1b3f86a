"""All plans of a model on a cluster, the best first, and why the others are not among them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from actors.pipeline.header import MAX_SPANS
from actors.pipeline.topology import Profile, check_plan
from characters.errors import UserError
from characters.model.config import ModelConfig
from characters.model.plan import ParallelPlan
from deploy.planning.cluster import Cluster
from deploy.planning.cost import Cost, deadline, estimate
from deploy.planning.fleet import Fleet
from deploy.planning.option import USABLE, Option


@dataclass(frozen=True, slots=True)
class Verdict:
    """One plan that was looked at.

    Attributes:
        kind: of GPU.
        plan: the split.
        cost: what it would cost; None if it makes no sense.
        option: the plan, if it is kept.
        reason: why it is kept or rejected, for people.
    """

    kind: str
    plan: ParallelPlan
    cost: Cost | None
    option: Option | None
    reason: str

    @property
    def gpus(self) -> int:
        """GPUs of a session."""
        return self.plan.gpus + self.plan.decoder


def plan(name: str, model: ModelConfig, cluster: Cluster, across_nodes: bool = False) -> list[Verdict]:
    """Look at every plan.

    Args:
        name: of the model.
        model: its checked config.
        cluster: empty.
        across_nodes: whether a session may lie on several hosts.

    Returns:
        The kept ones by turn latency, then GPUs, then path; then the rejected ones, by how
        close they come.
    """
    verdicts = []
    for kind in cluster.rates:
        nodes = [node for node in cluster.nodes if node.kind == kind]
        largest = sum(n.gpus for n in nodes) if across_nodes else max(n.gpus for n in nodes)
        for split in _splits(model, largest):
            verdicts.append(judge(name, model, split, kind, cluster, across_nodes))
    return sorted(verdicts, key=_rank)


def kept(verdicts: Iterable[Verdict]) -> list[Option]:
    """The plans that meet the deadline, the best first."""
    return [verdict.option for verdict in verdicts if verdict.option is not None]


def _rank(verdict: Verdict) -> tuple[float, ...]:
    cost = verdict.cost
    if cost is None:
        return 2, verdict.gpus, verdict.plan.pipeline, verdict.plan.sequence
    if verdict.option is None:
        return 1, cost.p99, verdict.gpus, verdict.plan.pipeline
    return 0, cost.turn, verdict.gpus, cost.p99


def _splits(model: ModelConfig, gpus: int) -> list[ParallelPlan]:
    """Every split that fits on so many GPUs."""
    return [
        ParallelPlan(pipeline, sequence, decoder)
        for sequence in range(1, gpus + 1)
        if model.dit.num_heads % sequence == 0
        for pipeline in range(1, min(gpus // sequence, MAX_SPANS - 3, model.dit.num_layers) + 1)
        for decoder in ((0, 1, 2) if model.autoencoder.wan else (0, 1))  # over more nobody has measured one
        if pipeline * sequence + decoder <= gpus
    ]


def judge(
    name: str, model: ModelConfig, split: ParallelPlan, kind: str, cluster: Cluster, across_nodes: bool = False
) -> Verdict:
    """Look at one plan on one kind of GPU that the cluster has. The arguments are those of `plan`."""
    rates = cluster.rates[kind]
    island = max(max(node.islands) for node in cluster.nodes if node.kind == kind)

    def rejected(reason: str, cost: Cost | None = None) -> Verdict:
        return Verdict(rates.name, split, cost, None, reason)

    try:
        check_plan(Profile(model=name, plan=split, device=rates.device), model)
    except UserError as error:
        return rejected(str(error).partition(": ")[2].partition(";")[0])
    for what, size in (("a sequence group", split.sequence), ("a decoder", split.decoder)):
        if size > island:
            return rejected(f"{what} of {size} does not fit into an NVLink island of {island}")
    cost = estimate(name, model, split, rates)
    room = USABLE * rates.memory.value
    if cost.memory > room:
        return rejected(f"needs {cost.memory:.0f} GB on a GPU, {room:.0f} are there", cost)
    limit = deadline(model)
    if cost.p99 > limit:
        slowest = max(cost.stages, key=lambda stage: stage.ms)
        late = cost.p99 - limit
        return rejected(f"{slowest.name} is {late:.1f} ms too slow at p99", cost)
    option = Option(name, model, split, rates, cost)
    placed = Fleet(cluster, across_nodes).place("", option)
    if placed is None:
        return rejected("its parts do not fit on the hosts, or too far apart", cost)
    margin = limit - placed.cost.p99
    reason = f"{margin:.1f} ms to spare"
    if option.shares:
        reason += f"; {option.per_gpu} sessions share a device"
    crossings = sum(gpu[:2] != placed.gpus[0][:2] for gpu in placed.gpus)
    if crossings:
        reason += f"; {crossings} GPU(s) outside the first island"
    return Verdict(rates.name, split, placed.cost, option, reason)
