from __future__ import annotations

from typing import Any

import pytest
from ray.serve.config import AutoscalingConfig, AutoscalingContext, AutoscalingPolicy

from deploy.planning.scaling import WarmSpares, replicas_wanted, shortfall


def context(ongoing: float = 0, queued: float = 0) -> Any:
    """Ray's own, so that a change of its signature shows."""
    return AutoscalingContext(
        deployment_id=None,  # type: ignore[arg-type]
        deployment_name="Pipeline",
        app_name="default",
        current_num_replicas=1,
        target_num_replicas=1,
        running_replicas=[],
        total_num_requests=ongoing,
        total_queued_requests=queued,
        aggregated_metrics={},
        raw_metrics={},
        capacity_adjusted_min_replicas=1,
        capacity_adjusted_max_replicas=10,
        policy_state={},
        last_scale_up_time=None,
        last_scale_down_time=None,
        current_time=0.0,
        config=None,
    )


@pytest.mark.parametrize(
    ("running", "waiting", "spare", "wanted"),
    [(0, 0, 0, 1), (0, 0, 2, 2), (3, 0, 1, 4), (3, 2, 1, 6), (2.4, 0, 1, 4), (9, 9, 1, 10), (3.0000001, 0, 0, 3)],
)
def test_one_for_each_session_and_some_warm(running: float, waiting: float, spare: int, wanted: int) -> None:
    assert replicas_wanted(running, waiting, spare, least=1, most=10) == wanted


def test_a_deployments_policy_counts_what_runs_and_what_is_queued_at_handles() -> None:
    assert WarmSpares(2)(context(ongoing=5, queued=2)) == (7, {})


def test_serve_takes_the_policy() -> None:
    policy = AutoscalingPolicy(policy_function=WarmSpares, policy_kwargs={"spare": 3})
    assert AutoscalingConfig(min_replicas=1, max_replicas=4, policy=policy).policy.get_policy().__name__ == "WarmSpares"
    assert policy.get_policy()(**policy.policy_kwargs)(context(ongoing=1))[0] == 4


def test_what_cannot_start_is_said() -> None:
    assert shortfall(3, 1, capacity=4) is None
    assert shortfall(4, 4, capacity=3) is None
    assert shortfall(6, 3, capacity=3) == "6 pipelines are asked for and the cluster has room for 3: 3 cannot start"
