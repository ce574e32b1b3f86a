"""What cannot work is refused before a weight is read, and what would work is named."""

from dataclasses import replace

import pytest

from characters.errors import UserError
from characters.model.config import SamplerConfig, load_model_config
from characters.model.plan import (
    GPU,
    ParallelPlan,
    check_gpus,
    check_plan,
    memory_bytes,
    parse_plan,
    shard_rows,
    shards,
)

LARGE = load_model_config("reference-57b")
H200 = GPU(count=4, memory=140 << 30, capability=(9, 0), name="H200")


def test_plans_are_read_from_text():
    assert parse_plan("sequence=3") == ParallelPlan(1, 3)
    assert parse_plan("pipeline=2, sequence=2") == ParallelPlan(2, 2)
    for bad in ("", "3", "sequence", "sequence=0", "sequence=-1", "tensor=2", "sequence=two"):
        with pytest.raises(UserError, match="such as sequence=3"):
            parse_plan(bad)


def test_shards_cover_all_layers_and_rows():
    for plan in (ParallelPlan(1, 3), ParallelPlan(4, 1), ParallelPlan(2, 2), ParallelPlan(7, 1)):
        parts = shards(plan, LARGE)
        assert len(parts) == plan.gpus
        for rank in range(plan.sequence):
            layers = [layer for p in parts if p.rank == rank for layer in range(*p.layers)]
            assert layers == list(range(60))
        assert all(p.rows == shard_rows(2992, plan.sequence) for p in parts)
        assert parts[0].rows * plan.sequence >= 2992


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (ParallelPlan(1, 7), r"heads, 60; the nearest plan that works is pipeline=7,sequence=1"),
        (ParallelPlan(61, 1), "layers, 60"),
        (ParallelPlan(0, 1), "at least 1"),
    ],
)
def test_sizes_that_do_not_divide_are_named(plan, message):
    with pytest.raises(UserError, match=message):
        check_plan(plan, LARGE, "reference-57b")


def test_a_pipeline_takes_one_pass_a_chunk():
    config = replace(LARGE, sampler=SamplerConfig(steps=[1.0, 0.5]))
    with pytest.raises(UserError, match="one pass"):
        check_plan(ParallelPlan(2, 1), config, "m")
    with pytest.raises(UserError, match="concat_previous"):
        check_plan(ParallelPlan(2, 1), load_model_config("small"), "small")


@pytest.mark.parametrize(
    ("plan", "format", "gpu", "message"),
    [
        (ParallelPlan(1, 3), "fp8", H200, None),
        (ParallelPlan(3, 1), "fp8", H200, None),
        (ParallelPlan(2, 2), "bf16", H200, None),
        (ParallelPlan(1, 4), "fp8", replace(H200, count=3), "needs 4 GPUs and 3 are present; .* pipeline=1,sequence=3"),
        (ParallelPlan(1, 1), "bf16", H200, "171 GB in bf16 and H200 has 150 GB free; a context of 5 .*sequence=2"),
        (ParallelPlan(1, 1), "fp8", replace(H200, capability=(8, 0), name="A100"), "A100 .*8.0.* no FP8"),
        (ParallelPlan(1, 1), "fp8", replace(H200, memory=24 << 30, count=1), "no plan works"),
    ],
)
def test_what_the_gpus_cannot_do_is_named(plan, format, gpu, message):
    if message is None:
        check_gpus(plan, LARGE, "reference-57b", format, gpu)
        return
    with pytest.raises(UserError, match=message):
        check_gpus(plan, LARGE, "reference-57b", format, gpu)


def test_memory_grows_with_the_context_and_falls_with_the_plan():
    def need(plan: ParallelPlan, ring: int) -> int:
        config = replace(LARGE, ring=ring)
        return max(memory_bytes(shard, config, "fp8") for shard in shards(plan, config))

    assert need(ParallelPlan(1, 3), 8) > need(ParallelPlan(1, 3), 4)
    assert need(ParallelPlan(1, 3), 8) < need(ParallelPlan(1, 2), 8) < need(ParallelPlan(1, 1), 8)
    # All blocks' weights lie on every rank of a sequence group: 56.6 GB.
    assert 60e9 < need(ParallelPlan(1, 3), 8) < 80e9
