"""How many pipelines there should be. Ray Serve calls `WarmSpares`.

Ray Serve 2.60 takes from Python a policy for one deployment: a class, made with `policy_kwargs`, called with an
`AutoscalingContext`. Users wait in the ingress, where it cannot see them. But while anybody waits every pipeline is
busy, so it asks for `spare` more at a time until nobody does.
"""

from __future__ import annotations

import math
from typing import Any

PIPELINE, INGRESS = "Pipeline", "Ingress"  # deployments; see deploy.app


def replicas_wanted(running: float, waiting: float, spare: int, *, least: int, most: int) -> int:
    """One pipeline for each session, running or waiting, and some that are warm.

    Args:
        running, waiting: sessions; averages over a while may be fractions.
        spare: pipelines to keep ready beyond them.
        least, most: bounds.
    """
    return min(max(math.ceil(running + waiting - 1e-6) + spare, least), most)


class WarmSpares:
    """A deployment's policy: sessions that run or wait at its handles, and `spare` more.

    Args:
        spare: pipelines to keep ready.
    """

    def __init__(self, spare: int) -> None:
        self._spare = spare

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        """See `ray.serve.config.AutoscalingContext`. Returns the replicas wanted, and no state."""
        wanted = replicas_wanted(
            context.total_running_requests,
            context.total_queued_requests or 0.0,
            self._spare,
            least=context.capacity_adjusted_min_replicas,
            most=context.capacity_adjusted_max_replicas,
        )
        return wanted, {}


def shortfall(target: int, running: int, capacity: int) -> str | None:
    """What to say when a demand cannot be met; None if it is, or will be.

    Args:
        target: replicas asked for.
        running: replicas that there are.
        capacity: replicas that the cluster can hold in all.
    """
    if target <= capacity or running >= target:
        return None
    return f"{target} pipelines are asked for and the cluster has room for {capacity}: {target - capacity} cannot start"
