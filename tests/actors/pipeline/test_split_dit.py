"""A DiT in several processes does what it does in one, and survives the death of any of them."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator

import numpy as np
import pytest
import ray
import torch

from actors.pipeline.gang import Gang
from actors.pipeline.session import SessionSpec
from actors.pipeline.topology import Profile, plan_topology
from actors.roles.aligner import AudioAligner
from characters.device import fast_dtype
from characters.generate.cached import CachedGenerator
from characters.generate.networks import load_networks
from characters.model.config import load_model_config
from characters.model.plan import ParallelPlan
from tests.actors.probes import push
from tests.actors.recording import Recorder

pytestmark = pytest.mark.usefixtures("ray_started")

RECORDING = "tests.actors.recording:build"
CHUNKS = 5
# Of latents up to 4 in magnitude; products are summed in another order.
TOLERANCE = 1e-4 if fast_dtype(torch.device("cpu")) == torch.float32 else 0.1


def session_for(model: str) -> SessionSpec:
    config = load_model_config(model)
    rng = np.random.default_rng(1)
    return SessionSpec(rng.integers(0, 255, (config.height, config.width, 3), np.uint8), seed=3)


def in_one_process(model: str) -> list[np.ndarray]:
    """Latents of silence."""
    torch.set_num_threads(1)
    networks = load_networks(model, "cpu", random_weights=True)
    generator, session = CachedGenerator(networks, dtype=torch.float32), session_for(model)
    aligner = AudioAligner(generator.clock, generator.hearing)
    generator.start(session.portrait, session.seed)
    return [generator.generate(torch.from_numpy(aligner.next().heard)).numpy() for _ in range(CHUNKS)]


@pytest.fixture(scope="module")
def kept(ray_started: None) -> Iterator[dict[str, Gang]]:
    """At most one gang that runs, by what its model is conditioned on."""
    gangs: dict[str, Gang] = {}
    yield gangs
    for gang in gangs.values():
        gang.stop()


@contextlib.contextmanager
def running(kept: dict[str, Gang], models: dict[str, str], conditions: str) -> Iterator[Gang]:
    """The gang of the test before if it has the same model, else a new one; it is kept unless the test fails."""
    if conditions not in kept:
        while kept:
            kept.popitem()[1].stop()
        topology = plan_topology(Profile(model=models[conditions], cpus=0.05, plan=ParallelPlan(2, 2, 1)))
        kept[conditions] = Gang(topology, factory=RECORDING, health_period=0.3, health_timeout=60.0)
        kept[conditions].start(session_for(models[conditions]), timeout=120.0)
    try:
        yield kept[conditions]
    except BaseException:
        kept.pop(conditions).stop()
        raise


def latents(gang: Gang, past: int) -> dict[int, np.ndarray]:
    """What the decoder was sent, once it has chunk `past` or, that one having been cancelled, a later one."""
    give_up = time.monotonic() + 120
    while True:
        found: dict[int, np.ndarray] = gang.ask("decoder", Recorder.latents)
        if max(found, default=-1) >= past:
            return found
        assert time.monotonic() < give_up, f"chunk {past} never came"
        time.sleep(0.1)


def check_latents(kept: dict[str, Gang], models: dict[str, str], conditions: str) -> None:
    """In several processes as in one."""
    # Other plans: tests/characters/model/test_parallel.py.
    with running(kept, models, conditions) as gang:
        got = latents(gang, CHUNKS - 1)
    expected = in_one_process(models[conditions])
    for index, want in enumerate(expected):
        assert np.abs(got[index] - want).max() < TOLERANCE
    assert np.abs(expected[0] - expected[-1]).max() > 5 * TOLERANCE, "chunks differ by more than the tolerance"


def test_latents_conditioned_on_text_are_those_of_one_process(
    kept: dict[str, Gang], split_models: dict[str, str]
) -> None:
    check_latents(kept, split_models, "text")


def test_a_killed_part_is_replaced_and_all_start_over(kept: dict[str, Gang], split_models: dict[str, str]) -> None:
    states: list[str] = []
    victim = "dit.1.0"
    # The chunks of this model depend on nothing but how many there were.
    with running(kept, split_models, "text") as gang:
        gang.on_state = lambda state, reason: states.append(state)
        before = latents(gang, CHUNKS)
        pids = pids_of(gang)
        others = [run for run, name in gang._runs.items() if name.startswith("dit") and name != victim]
        os.kill(pids[victim], signal.SIGKILL)
        killed = time.monotonic()
        ended, _ = ray.wait(others, num_returns=len(others), timeout=10)
        took = time.monotonic() - killed
        print(f"\nSIGKILL of {victim}: {len(ended)} of 3 other parts of the DiT ended within {took:.2f} s")
        assert len(ended) == 3 and took < 3, "1 s on an idle machine"
        found = latents(gang, max(before) + 8)
        assert states == ["rebuilding", "running"]
        after = pids_of(gang)
        assert {name for name in pids if pids[name] != after[name]} == {victim}
        first, second = in_one_process(split_models["text"])[:2]
        again = [i for i in sorted(found) if i > 0 and np.abs(found[i] - first).max() < TOLERANCE]
        assert again, "they did not start over from the portrait"
        assert np.abs(found[again[-1] + 1] - second).max() < TOLERANCE


def test_latents_conditioned_on_audio_are_those_of_one_process(
    kept: dict[str, Gang], split_models: dict[str, str]
) -> None:
    check_latents(kept, split_models, "audio")


def test_barge_in_does_not_part_the_parts(kept: dict[str, Gang], split_models: dict[str, str]) -> None:
    """Whatever is cancelled when, every process works on every chunk."""
    with running(kept, split_models, "audio") as gang:
        latents(gang, 1)
        for response_id in range(6):
            push(gang, response_id, np.full(20_000, 0.1, np.float32))
            time.sleep(0.15)
            gang.cancel(response_id)
        newest = max(latents(gang, 1))
        latents(gang, newest + 4)
        shards = [stage for name, stage in gang._stages.items() if name.startswith("dit")]
        dropped = [count for stage in shards for _, count in ray.get(stage.counts.remote()).values()]
        assert dropped == [0] * 4
        assert gang.state == "running" and not gang._rebuilds


def pids_of(gang: Gang) -> dict[str, int]:
    return {name: ray.get(stage.pid.remote()) for name, stage in gang._stages.items()}
