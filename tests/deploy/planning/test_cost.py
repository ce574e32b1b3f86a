from __future__ import annotations

import dataclasses

import pytest

from actors.pipeline.topology import Profile, load_profile, plan_topology
from characters.config import conf_names
from characters.errors import UserError
from characters.model.config import ModelConfig, load_model_config, with_context
from characters.model.plan import ParallelPlan
from deploy.planning.cost import Cost, Links, attention_ms, estimate, look_ahead, product_ms, share_ms
from deploy.planning.rates import Rates, load_rates
from tests.deploy.planning.known import DEADLINE_MS, LARGE

# kernels/RESULTS.md, one GPU's share of a step: context, plan, ms of the step and of its bare products and attention;
# the mean where there are several runs. A rank of sequence=2 is not among them: it takes 4 % longer than predicted.
SHARES = [
    (9, (1, 3), 144.0, 139.0),
    (5, (1, 3), 119.6, 114.9),
    (9, (3, 1), 136.8, 133.4),
    (5, (3, 1), 112.7, 108.2),
    (4, (2, 1), 159.4, 152.4),
]
# The same, two GPUs at work, with slightly slower kernels than the shares above: context, plan, ms between chunks.
TOGETHER = [(5, (1, 2), 193.9), (5, (2, 1), 171.9), (4, (2, 1), 163.8)]
# DESIGN.md, ceilings measured on H200 with stock kernels: context, GPUs, sequence ms, pipeline ms a chunk.
STOCK = [
    (9, 2, 245, 222),
    (9, 3, 167, 151.5),
    (9, 4, 127, 115),
    (5, 2, 206, 186),
    (5, 3, 139.5, 126.6),
    (5, 4, 108, 96),
]


def reference(context: int) -> ModelConfig:
    return with_context(load_model_config(LARGE), context, LARGE)


def predict(context: int, plan: ParallelPlan, rates: Rates | None = None) -> Cost:
    return estimate(LARGE, reference(context), plan, rates or load_rates("H200"))


def stock() -> Rates:
    """An H200 with stock kernels: nothing fused, an exchange over NCCL with packing, the decoder eager."""
    rates = load_rates("H200")
    return dataclasses.replace(
        rates,
        traffic=dataclasses.replace(rates.traffic, value=153),
        exchange=dataclasses.replace(rates.exchange or rates.traffic, value=54),
        decoder=dataclasses.replace(rates.decoder, value=164),
    )


def slowest_dit(cost: Cost) -> float:
    return max(stage.ms for stage in cost.stages if stage.name.startswith("dit"))


@pytest.mark.parametrize(("context", "split", "step", "floor"), SHARES)
def test_a_gpus_share_is_predicted_within_three_percent(
    context: int, split: tuple[int, int], step: float, floor: float
) -> None:
    model, plan, rates = reference(context), ParallelPlan(*split, 1), load_rates("H200")
    layers = model.dit.num_layers // plan.pipeline
    found = share_ms(model, plan, rates, layers)
    bare = product_ms(model, plan, rates, layers) + attention_ms(model, plan, rates, layers)
    print(f"C={context} {plan}: step {found:.1f} of {step}, floor {bare:.1f} of {floor} ms")
    assert found == pytest.approx(step, rel=0.03)
    assert bare == pytest.approx(floor, rel=0.03)


@pytest.mark.parametrize(("context", "split", "ms"), TOGETHER)
def test_gpus_together_are_predicted_within_three_percent(context: int, split: tuple[int, int], ms: float) -> None:
    found = slowest_dit(predict(context, ParallelPlan(*split, 1)))
    print(f"C={context} {split}: {found:.1f} of {ms} ms")
    assert found == pytest.approx(ms, rel=0.03)


@pytest.mark.parametrize(("context", "gpus", "sequence", "pipeline"), STOCK)
def test_stock_kernels_are_predicted_within_a_tenth(context: int, gpus: int, sequence: float, pipeline: float) -> None:
    of_sequence = slowest_dit(predict(context, ParallelPlan(1, gpus, 1), stock()))
    of_pipeline = slowest_dit(predict(context, ParallelPlan(gpus, 1, 1), stock()))
    print(
        f"C={context} n={gpus}: sequence {of_sequence:.1f} of {sequence}, pipeline {of_pipeline:.1f} of {pipeline} ms"
    )
    assert of_sequence == pytest.approx(sequence, rel=0.10)
    assert of_pipeline == pytest.approx(pipeline, rel=0.10)


@pytest.mark.parametrize(("rates", "ms"), [(stock(), 159.0), (load_rates("H200"), 47.9)])
def test_the_decoder_is_predicted_within_a_tenth(rates: Rates, ms: float) -> None:
    decoder = next(stage for stage in predict(9, ParallelPlan(1, 3, 1), rates).stages if stage.name == "decoder")
    assert decoder.ms == pytest.approx(ms, rel=0.10)


def test_bfloat16_is_predicted_within_a_tenth() -> None:
    """247 ms, of computing alone, stock kernels: on one GPU without an exchange, a third of all layers is the same."""
    rates = dataclasses.replace(stock(), gemm_fp8=None, attention_fp8=None)
    assert slowest_dit(predict(9, ParallelPlan(3, 1, 1), rates)) == pytest.approx(247, rel=0.10)


@pytest.mark.parametrize(("context", "split", "floor"), [(9, (1, 3), 137), (9, (3, 1), 132), (5, (3, 1), 107)])
def test_the_floor_of_stock_operands(context: int, split: tuple[int, int], floor: float) -> None:
    model, plan = reference(context), ParallelPlan(*split, 1)
    layers = model.dit.num_layers // plan.pipeline
    found = product_ms(model, plan, stock(), layers) + attention_ms(model, plan, stock(), layers)
    assert found == pytest.approx(floor, rel=0.10)


@pytest.mark.parametrize("name", ["h200x2", "h200x3", "h200x4"])
def test_what_ships_for_the_h200_is_in_time_at_p99(name: str) -> None:
    topology = plan_topology(load_profile(name))
    cost = estimate(topology.profile.model, topology.model, topology.profile.plan, load_rates("H200"))
    print(f"{name}: {cost.chunk:.1f} ms, p99 {cost.p99:.1f} ms")
    assert cost.p99 <= DEADLINE_MS


def test_a_measured_median_just_inside_the_deadline_is_too_slow() -> None:
    """pipeline=2 was seen at 163.8 ms with a context of 4: no p99 that anybody has measured fits into what is left."""
    assert predict(4, ParallelPlan(2, 1, 1)).p99 > DEADLINE_MS


def test_the_small_model_costs_what_was_measured() -> None:
    model, alone = load_model_config("small"), ParallelPlan(1, 1, 0)
    assert estimate("small", model, alone, load_rates("H200")).path == pytest.approx(1.65, rel=0.10)
    assert estimate("small", model, alone, load_rates("CPU")).path == pytest.approx(43.7, rel=0.10)


@pytest.mark.parametrize("split, flight", [((1, 4, 1), 3), ((3, 1, 1), 5), ((2, 2, 0), 3), ((1, 3, 2), 3)])
def test_a_turn_is_the_border_the_look_ahead_and_the_flight_that_runs(split: tuple[int, int, int], flight: int) -> None:
    plan = ParallelPlan(*split)
    (pcm,) = plan_topology(Profile(model=LARGE, plan=plan)).outputs("aligner")[-1:]
    assert (pcm.port, pcm.slots) == ("pcm", flight)
    cost = predict(9, plan)
    assert cost.turn == pytest.approx(DEADLINE_MS / 2 + look_ahead(reference(5)) + flight * DEADLINE_MS)
    if plan.decoder:
        assert cost.path == pytest.approx(sum(stage.ms for stage in cost.stages))
    assert look_ahead(load_model_config("small")) == pytest.approx(83.3, abs=0.1)


def test_memory_falls_as_the_layers_are_split_and_weights_are_not_split_by_sequence() -> None:
    whole = predict(9, ParallelPlan(1, 1, 1)).memory
    assert 56.6 + 24.8 < whole < 56.6 + 24.8 + 12
    assert predict(9, ParallelPlan(3, 1, 1)).memory < whole / 2
    assert predict(9, ParallelPlan(1, 3, 1)).memory > 56.6


def test_a_link_between_islands_or_hosts_costs_time() -> None:
    model, plan, rates = load_model_config(LARGE), ParallelPlan(2, 1, 1), load_rates("H200")
    near, far, apart = (
        slowest_dit(estimate(LARGE, model, plan, rates, Links((link,)))) for link in ("island", "host", "network")
    )
    hidden = 2992 * 7680 * 2 / 1e6  # MB, by GB/s gives ms
    assert far - near == pytest.approx(hidden / 40 - hidden / 420, abs=0.01)
    assert apart - near == pytest.approx(hidden / 25 - hidden / 420, abs=0.01)


def test_more_work_never_takes_less_time() -> None:
    for n in (1, 2, 3, 4, 5, 6):
        for plan in (ParallelPlan(1, n, 1), ParallelPlan(n, 1, 1)):
            assert slowest_dit(predict(5, plan)) < slowest_dit(predict(9, plan)) < slowest_dit(predict(13, plan))


def test_every_shipped_rate_says_where_it_comes_from() -> None:
    for kind in conf_names("gpus"):
        rates = load_rates(kind)
        figures = [v for v in (*vars(rates).values(), *rates.models.values()) if hasattr(v, "how")]
        assert len(figures) >= 13
        assert all(figure.date and figure.source for figure in figures), kind


def test_what_nobody_measured_is_refused() -> None:
    with pytest.raises(UserError, match="no NVLink"):
        estimate(LARGE, load_model_config(LARGE), ParallelPlan(1, 2, 1), load_rates("RTX4090"))
    with pytest.raises(UserError, match="measured the decoder"):
        estimate("mine", load_model_config("small"), ParallelPlan(), load_rates("H200"))
