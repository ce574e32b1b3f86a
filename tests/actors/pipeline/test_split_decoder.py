"""A picture decoded by two processes, each with a band of its rows, is the one process's, and survives a death."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest
import torch

from actors.pipeline.gang import Gang
from actors.pipeline.session import SessionSpec
from actors.pipeline.topology import Profile, plan_topology
from characters.generate.decoder import LatentDecoder
from characters.generate.networks import load_networks
from characters.model.plan import ParallelPlan
from tests.actors.pipeline.test_split_dit import pids_of

SESSION = SessionSpec(np.random.default_rng(1).integers(0, 255, (64, 48, 3), np.uint8), seed=3)

Film = list[tuple[np.ndarray, np.ndarray]]


def wait_for(gang: Gang, chunks: int) -> Film:
    """Latents and frames of the first band's process, once it has made so many."""
    give_up = time.monotonic() + 120
    while len(film := gang.ask("decoder", lambda decoder: decoder.film)) < chunks:
        assert time.monotonic() < give_up, "the chunks never came"
        time.sleep(0.1)
    return film


def assert_as_in_one_process(film: Film, model: str) -> None:
    """Frames of all the latents, one after another, whatever happened between them."""
    torch.set_num_threads(1)
    decoder = LatentDecoder(load_networks(model, "cpu", random_weights=True))
    decoder.start(SESSION.portrait)
    whole = [decoder.decode(torch.tensor(latent)).numpy() for latent, _ in film]
    for (_, split), expected in zip(film, whole, strict=True):
        assert split.shape == expected.shape == (4, 96, 48)
        wrong = np.abs(split.astype(int) - expected.astype(int))
        # Convolutions of other sizes sum in another order, which now and then crosses the border of a byte.
        assert wrong.max() <= 1 and (wrong > 0).mean() < 0.001
    assert expected.std() > 5 and np.abs(expected.astype(int) - whole[0]).mean() > 1, "there is something to see"


@pytest.mark.usefixtures("ray_started")
def test_frames_are_those_of_one_process_also_after_a_death(wan_model: str) -> None:
    topology = plan_topology(Profile(model=wan_model, cpus=0.05, plan=ParallelPlan(1, 1, 2)))
    states: list[str] = []
    gang = Gang(
        topology,
        factory="tests.actors.recording:build_with_film",
        health_period=0.3,
        health_timeout=60.0,
        on_state=lambda state, reason: states.append(state),
    )
    gang.start(SESSION, timeout=120.0)
    try:
        before = len(wait_for(gang, 4))
        pids = pids_of(gang)
        os.kill(pids["decoder.1"], signal.SIGKILL)
        film = wait_for(gang, before + 6)[: before + 6]
        after = pids_of(gang)
    finally:
        gang.stop()
    assert {name for name in pids if pids[name] != after[name]} == {"decoder.1"}
    assert states[:3] == ["running", "rebuilding", "running"]
    assert_as_in_one_process(film, wan_model)
