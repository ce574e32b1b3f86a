from __future__ import annotations

import pytest

from characters.errors import UserError
from characters.model.config import load_model_config
from deploy.planning.cluster import ISLAND_LABEL, cluster_of_ray, parse_cluster
from deploy.planning.plan import kept, plan
from tests.deploy.planning.known import DEADLINE_MS, LARGE


def test_the_best_has_the_shortest_turn_and_then_the_fewest_gpus() -> None:
    found = kept(plan(LARGE, load_model_config(LARGE), parse_cluster("8xH200")))
    assert (found[0].plan.sequence, found[0].plan.pipeline, found[0].plan.decoder) == (5, 1, 0)
    ranks = [(option.cost.turn, option.gpus) for option in found]
    assert ranks == sorted(ranks)
    assert all(option.cost.p99 <= DEADLINE_MS for option in found)
    assert min(option.gpus for option in found) == 4


def test_every_plan_has_a_reason() -> None:
    verdicts = plan(LARGE, load_model_config(LARGE), parse_cluster("8xH200/4"))
    splits = {(v.plan.pipeline, v.plan.sequence, v.plan.decoder): v for v in verdicts}
    assert "dit.0 is 6.2 ms too slow" in splits[1, 3, 1].reason
    assert "a sequence group of 5 does not fit into an NVLink island of 4" in splits[1, 5, 1].reason
    assert "ms to spare" in splits[3, 1, 1].reason
    assert "1 GPU(s) outside the first island" in splits[1, 4, 1].reason
    assert all(v.reason for v in verdicts)


def test_memory_rejects() -> None:
    verdicts = plan(LARGE, load_model_config(LARGE), parse_cluster("4xRTX4090"))
    assert not kept(verdicts)
    alone = next(v for v in verdicts if v.gpus == 1)
    assert "GB on a GPU, 23 are there" in alone.reason


def test_the_small_model_shares_a_gpu_and_fits_on_a_cpu() -> None:
    on_gpu = kept(plan("small", load_model_config("small"), parse_cluster("H200")))[0]
    assert on_gpu.shares
    assert 16 < on_gpu.per_gpu < 75
    on_cpu = kept(plan("small", load_model_config("small"), parse_cluster("CPU")))[0]
    assert on_cpu.per_gpu == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("8xH300", "did you mean 'H200'"),
        ("0xH200", "no GPU in it"),
        ("0x8xH200", "no GPU in it"),
        ("", "no description of GPUs"),
        ("8 H200", "no description of GPUs"),
        ("8xH200/3", "islands of 3 do not divide 8 GPUs"),
        ("8xH200/0", "islands of 0"),
        ("9999x9999xH200", "more than 100,000"),
    ],
)
def test_nonsense_gets_one_clear_line(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_cluster(text)


def test_a_cluster_in_words() -> None:
    cluster = parse_cluster("3x8xh200/4+2xA100")
    assert [node.islands for node in cluster.nodes] == [(4, 4)] * 3 + [(2,)]
    assert cluster.gpus == 26
    assert set(cluster.rates) == {"H200", "A100"}
    assert len({node.name for node in cluster.nodes}) == 4


def test_a_cluster_that_ray_describes() -> None:
    def node(
        name: str, alive: bool = True, labels: dict[str, str] | None = None, **resources: float
    ) -> dict[str, object]:
        return {"NodeID": name, "Alive": alive, "Resources": {"CPU": 8.0, **resources}, "Labels": labels or {}}

    gpus = {"GPU": 8.0, "accelerator_type:H200": 1.0}
    cluster = cluster_of_ray(
        [node("a", **gpus), node("b", labels={ISLAND_LABEL: "4"}, **gpus), node("c", alive=False, **gpus), node("d")]
    )
    assert [(n.name, n.islands) for n in cluster.nodes] == [("a", (8,)), ("b", (4, 4))]
    assert [n.kind for n in cluster_of_ray([node("d")]).nodes] == ["CPU"]
    with pytest.raises(UserError, match=f"node f: its label {ISLAND_LABEL} must be .* divides 8, not 'half'"):
        cluster_of_ray([node("f", labels={ISLAND_LABEL: "half"}, **gpus)])
    with pytest.raises(UserError, match="no kind of GPU 'unknown'"):
        cluster_of_ray([node("e", GPU=1.0)])
