from __future__ import annotations

import dataclasses

import pytest

from characters.errors import UserError
from characters.model.config import load_model_config
from characters.model.plan import ParallelPlan
from deploy.planning.cost import DEADLINE, LOOK_AHEAD, Cost, Links, attention_ms, estimate, product_ms
from deploy.planning.rates import Rates, load_rates, rates_names
from tests.deploy.planning.known import LARGE

# DESIGN.md, ceilings measured on H200: context, GPUs, sequence ms, pipeline ms a chunk.
MEASURED = [
    (9, 2, 245, 222),
    (9, 3, 167, 151.5),
    (9, 4, 127, 115),
    (5, 2, 206, 186),
    (5, 3, 139.5, 126.6),
    (5, 4, 108, 96),
]


def predict(context: int, plan: ParallelPlan, rates: Rates | None = None) -> Cost:
    model = load_model_config(LARGE)
    return estimate(LARGE, dataclasses.replace(model, ring=context - model.sink), plan, rates or load_rates("H200"))


def slowest_dit(cost: Cost) -> float:
    return max(stage.ms for stage in cost.stages if stage.name.startswith("dit"))


@pytest.mark.parametrize(("context", "gpus", "sequence", "pipeline"), MEASURED)
def test_steps_are_predicted_within_a_tenth(context: int, gpus: int, sequence: float, pipeline: float) -> None:
    of_sequence = slowest_dit(predict(context, ParallelPlan(1, gpus, 1)))
    of_pipeline = slowest_dit(predict(context, ParallelPlan(gpus, 1, 1)))
    print(
        f"C={context} n={gpus}: sequence {of_sequence:.1f} of {sequence}, pipeline {of_pipeline:.1f} of {pipeline} ms"
    )
    assert of_sequence == pytest.approx(sequence, rel=0.10)
    assert of_pipeline == pytest.approx(pipeline, rel=0.10)


def test_the_decoder_is_predicted_within_a_tenth() -> None:
    decoder = next(stage for stage in predict(9, ParallelPlan(1, 3, 1)).stages if stage.name == "decoder")
    assert decoder.ms == pytest.approx(159, rel=0.10)


def test_bfloat16_is_predicted_within_a_tenth() -> None:
    """247 ms, of computing alone: on one GPU without an exchange, a third of all layers is the same work."""
    rates = dataclasses.replace(load_rates("H200"), gemm_fp8=None, attention_fp8=None)
    assert slowest_dit(predict(9, ParallelPlan(3, 1, 1), rates)) == pytest.approx(247, rel=0.10)


@pytest.mark.parametrize(("context", "plan", "floor"), [(9, (1, 3), 137), (9, (3, 1), 132), (5, (3, 1), 107)])
def test_the_floor_of_products_and_attention(context: int, plan: tuple[int, int], floor: float) -> None:
    model = dataclasses.replace(load_model_config(LARGE), ring=context - 1)
    split, rates = ParallelPlan(*plan, 1), load_rates("H200")
    layers = model.dit.num_layers // split.pipeline
    found = product_ms(model, split, rates, layers) + attention_ms(model, split, rates, layers)
    assert found == pytest.approx(floor, rel=0.10)


def test_the_small_model_costs_what_was_measured() -> None:
    model, alone = load_model_config("small"), ParallelPlan(1, 1, 0)
    assert estimate("small", model, alone, load_rates("H200")).path == pytest.approx(1.65, rel=0.10)
    assert estimate("small", model, alone, load_rates("CPU")).path == pytest.approx(43.7, rel=0.10)


def test_a_turn_is_the_border_the_look_ahead_and_the_flight() -> None:
    for plan, flight in ((ParallelPlan(1, 4, 1), 3), (ParallelPlan(3, 1, 1), 5)):
        cost = predict(9, plan)
        assert cost.flight == flight
        assert cost.turn == pytest.approx(DEADLINE / 2 + LOOK_AHEAD + flight * DEADLINE)
        assert cost.path == pytest.approx(sum(stage.ms for stage in cost.stages))
    assert pytest.approx(83.3, abs=0.1) == LOOK_AHEAD


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
    for kind in rates_names():
        rates = load_rates(kind)
        figures = [v for v in (*vars(rates).values(), *rates.models.values()) if hasattr(v, "how")]
        assert len(figures) >= 13
        assert all(figure.date and figure.source for figure in figures), kind


def test_what_nobody_measured_is_refused() -> None:
    with pytest.raises(UserError, match="no NVLink"):
        estimate(LARGE, load_model_config(LARGE), ParallelPlan(1, 2, 1), load_rates("RTX4090"))
    with pytest.raises(UserError, match="measured the decoder"):
        estimate("mine", load_model_config("small"), ParallelPlan(), load_rates("H200"))
