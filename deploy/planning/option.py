"""A plan of a model on one kind of GPU that meets the deadline."""

from __future__ import annotations

from dataclasses import dataclass, field

from characters.model.config import ModelConfig
from characters.model.plan import ParallelPlan
from deploy.planning.cost import Cost, Links, deadline, estimate
from deploy.planning.rates import Rates

USABLE = 0.95  # share of a GPU's memory
_SHARING = 0.5  # a session that fills less of a device than this leaves room for another


@dataclass(frozen=True)
class Option:
    """One plan on one kind of GPU that meets the deadline.

    Attributes:
        model: name.
        config: sizes.
        plan: the split.
        rates: of the kind.
        cost: with all parts in one island.
    """

    model: str
    config: ModelConfig = field(repr=False)
    plan: ParallelPlan
    rates: Rates = field(repr=False)
    cost: Cost
    _costs: dict[Links, Cost] = field(default_factory=dict, repr=False, compare=False)

    @property
    def kind(self) -> str:
        """Of the GPUs."""
        return self.rates.name

    @property
    def gpus(self) -> int:
        """GPUs of a session; 1 if it shares one."""
        return self.plan.gpus + self.plan.decoder

    @property
    def deadline(self) -> float:
        """Milliseconds that a chunk of the model lasts."""
        return deadline(self.config)

    @property
    def share(self) -> float:
        """Share of the time that sessions may fill which one session fills, on its busiest GPU."""
        return self.cost.p99 / (self.deadline * self.rates.sharing.value)

    @property
    def shares(self) -> bool:
        """Whether several sessions take turns on one device."""
        return self.gpus == 1 and self.share <= _SHARING

    @property
    def per_gpu(self) -> int:
        """Sessions that one device holds, by time and by memory; 1 unless they share."""
        if not self.shares:
            return 1
        return min(int((1 - 1e-9) / self.share), int(USABLE * self.rates.memory.value / self.cost.memory))

    def cost_over(self, links: Links) -> Cost:
        """With its parts that far apart."""
        if links not in self._costs:
            self._costs[links] = estimate(self.model, self.config, self.plan, self.rates, links)
        return self._costs[links]
