"""A window model in real processes, and beside it a session of another clock: random weights, a stub of a room."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import ray

from actors.pipeline.gang import Gang
from actors.pipeline.session import SessionSpec
from actors.pipeline.topology import Profile, plan_topology
from characters.chunk import SAMPLE_RATE, Clock
from characters.model.config import load_model_config
from characters.model.plan import ParallelPlan
from tests.actors.probes import account, deadline, push, room

pytestmark = pytest.mark.usefixtures("ray_started")

Start = Callable[[str], Gang]


@pytest.fixture
def start() -> Iterator[Start]:
    gangs: list[Gang] = []

    def start_gang(model: str) -> Gang:
        config = load_model_config(model)
        topology = plan_topology(Profile(model=model, plan=ParallelPlan(1, 1, 0), cpus=0.1, random_weights=True))
        gang = Gang(topology, health_period=0.3)
        gangs.append(gang)
        grey = np.full((config.height, config.width, 3), 120, np.uint8)
        gang.start(SessionSpec(grey), timeout=120.0)
        return gang

    yield start_gang
    for gang in gangs:
        gang.stop()


def eventually(condition: Callable[[], Any], what: str, timeout: float = 60.0) -> None:
    give_up = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < give_up, what
        time.sleep(0.05)


def speech(seconds: float) -> np.ndarray:
    return (np.random.default_rng(0).standard_normal(round(seconds * SAMPLE_RATE)) * 0.1).astype(np.float32)


def seen(gang: Gang) -> tuple[list[tuple[float, int, float, int]], list[tuple[float, int, float]]]:
    found = room(gang)
    return list(found.video), list(found.audio)


@pytest.mark.real_time
def test_two_clocks_side_by_side(start: Start, window_model: str, tiny_model: str) -> None:
    long, short = start(window_model), start(tiny_model)
    gangs = {Clock(25, 28): long, Clock(): short}
    for clock, gang in gangs.items():
        eventually(lambda gang=gang: len(seen(gang)[0]) > 60, "no picture")
        assert gang.topology.model.clock == clock
        assert push(gang, 1, speech(2.0)) == 2 * SAMPLE_RATE
    for clock, gang in gangs.items():
        eventually(lambda gang=gang: account(gang, 1).played == 2 * SAMPLE_RATE, "it is not said to the end")
        video, audio = seen(gang)
        lost = deadline(gang).lost
        rate = (len(video) - 1) / (video[-1][0] - video[0][0] - lost)
        print(f"\n{clock}: {rate:.2f} frames a second, {deadline(gang).misses} late by {lost:.2f} s in all")
        assert rate == pytest.approx(clock.fps, rel=0.03)
        assert {samples for _, samples, _ in audio} == {clock.frame_samples}
        assert [number for *_, number in video] == list(range(len(video)))
        assert all(abs(v[0] - a[0]) < 0.05 for v, a in zip(video, audio, strict=False))
        assert sum(samples for _, samples, peak in audio if peak) >= 2 * SAMPLE_RATE
    spans = {clock: gang.trace().spans for clock, gang in gangs.items()}
    assert spans == {Clock(25, 28): ("aligner", "generator", "publisher"),
                     Clock(): ("aligner", "dit.0", "decoder", "publisher")}  # fmt: skip


@pytest.mark.real_time
def test_speech_and_interruptions_cut_and_the_trace_knows(start: Start, window_model: str) -> None:
    gang = start(window_model)
    eventually(lambda: len(seen(gang)[0]) > 60, "no picture")
    waits, stills = [], []
    for response in range(1, 5):
        asked = time.monotonic()
        push(gang, response, speech(3.0))
        eventually(lambda asked=asked: any(p for at, _, p in seen(gang)[1] if at > asked), "no sound")
        waits.append(next(at for at, _, peak in seen(gang)[1] if peak and at > asked) - asked)
        time.sleep(0.5 + 0.2 * response)
        gang.cancel(response)
        cancelled = time.monotonic()
        time.sleep(1.5)
        last = max(at for at, _, peak in seen(gang)[1] if peak)
        stills.append(last - cancelled)
        played = account(gang, response).played
        assert 0 < played < 3 * SAMPLE_RATE
    headers = list(gang.trace().chunks)
    making = max(h.stamps[3] - h.stamps[2] for h in headers)
    print(
        f"\nfirst sound after {[round(w, 2) for w in waits]} s, silent after {[round(s, 2) for s in stills]} s; ",
        end="",
    )
    print(f"a chunk took {making:.2f} s at most; {sum(h.frames < 28 for h in headers)} chunks were cut")
    assert max(stills) < 0.15
    assert sum(h.frames < 28 for h in headers) >= 6
    assert all(a.first + a.frames == b.first for a, b in pairwise(headers))
    assert min(waits) < 1.12


@pytest.mark.real_time
def test_the_death_of_the_generator_loses_no_word(start: Start, window_model: str) -> None:
    gang = start(window_model)
    eventually(lambda: len(seen(gang)[0]) > 60, "no picture")
    push(gang, 1, speech(4.0))
    time.sleep(1.5)
    os.kill(ray.get(gang._stages["generator"].pid.remote()), signal.SIGKILL)
    eventually(lambda: account(gang, 1).played == 4 * SAMPLE_RATE, "the rest is not said")
    video, audio = seen(gang)
    assert sum(samples for _, samples, peak in audio if peak) == pytest.approx(4 * SAMPLE_RATE, abs=960 * 2)
    assert [number for *_, number in video] == list(range(len(video)))
