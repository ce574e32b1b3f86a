"""What several tests plan with."""

from __future__ import annotations

import functools

from characters.model.config import load_model_config
from characters.model.plan import ParallelPlan
from deploy.planning.cost import estimate
from deploy.planning.option import Option
from deploy.planning.rates import load_rates

LARGE = "reference-57b"
DEADLINE_MS = 1000 / 6  # of its chunks, and of the small model's


@functools.cache
def option(pipeline: int = 3, sequence: int = 1, decoder: int = 1, model: str = LARGE, kind: str = "H200") -> Option:
    """A plan, whether or not it meets the deadline."""
    config, rates, plan = load_model_config(model), load_rates(kind), ParallelPlan(pipeline, sequence, decoder)
    return Option(model, config, plan, rates, estimate(model, config, plan, rates))


def small() -> Option:
    """The small model, which shares a GPU."""
    return option(1, 1, 0, "small")
