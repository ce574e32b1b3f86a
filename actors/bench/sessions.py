"""How many sessions one device holds at 24 frames a second, with stub rooms.

    python -m actors.bench.sessions --profile laptop --sessions 1
    python -m actors.bench.sessions --profile h200 --sessions 1 4 8 16

For each number of sessions it starts as many gangs, lets them talk for a while and prints what a chunk spends its time
on. A number is held if 99 % of all chunks came, and came on time.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

from actors.pipeline.session import SessionSpec
from actors.pipeline.topology import Topology, load_profile, plan_topology
from actors.pipeline.trace import percentile
from actors.roles.aligner import AudioAligner
from characters.chunk import SAMPLE_RATE

HELD = 0.01
WARM_UP = 3.0
STARTED_AT_ONCE = 8
HIGHEST = 64


def speech(seconds: float, seed: int) -> np.ndarray:
    """float32 [n] at 24 kHz: noise in syllables, which is as much work for the model as speech is."""
    rng = np.random.default_rng(seed)
    time_axis = np.arange(int(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    loudness = 0.1 * (1 + np.sin(2 * np.pi * 4 * time_axis)) * (np.sin(2 * np.pi * 0.3 * time_axis + seed) > -0.3)
    return (loudness * rng.standard_normal(len(time_axis))).astype(np.float32)


def measure(topology: Topology, sessions: int, seconds: float) -> bool:
    """Run `sessions` gangs, print their figures and say whether they were held."""
    from actors.pipeline.gang import Gang

    model, clock, gangs = topology.model, topology.model.clock, [Gang(topology) for _ in range(sessions)]

    def start(seed: int) -> None:
        portrait = np.random.default_rng(seed).integers(0, 255, (model.height, model.width, 3), np.uint8)
        gangs[seed].start(SessionSpec(portrait, seed), timeout=120.0)

    try:
        with ThreadPoolExecutor(STARTED_AT_ONCE) as pool:
            list(pool.map(start, range(sessions)))
        for seed, gang in enumerate(gangs):
            pcm = speech(min(seconds + WARM_UP, 100.0), seed)
            gang.ask("aligner", partial(AudioAligner.push, response_id=0, pcm=pcm))
        time.sleep(WARM_UP)
        before = [gang.ask("publisher", lambda publisher: publisher.deadline) for gang in gangs]
        time.sleep(seconds)
        after = [gang.ask("publisher", lambda publisher: publisher.deadline) for gang in gangs]
        tables = [gang.trace() for gang in gangs]
    finally:
        for gang in gangs:
            gang.stop()
    chunks = sum(b.chunks - a.chunks for a, b in zip(before, after, strict=True))
    misses = sum(b.misses - a.misses for a, b in zip(before, after, strict=True))
    fps = min((b.chunks - a.chunks) * clock.frames / seconds for a, b in zip(before, after, strict=True))
    held = misses <= HELD * chunks and fps >= (1 - HELD) * clock.fps
    print(
        f"\n{sessions} session(s): {chunks} chunks, {misses} late ({misses / max(chunks, 1):.1%}), "
        f"slowest session {fps:.2f} fps: {'held' if held else 'NOT HELD'}"
    )
    recent = round(seconds / clock.seconds)
    values: dict[str, list[float]] = {}
    for trace in tables:
        for name, found in trace.seconds().items():
            values.setdefault(name, []).extend(found[-recent:])
    print(f"{'':24} {'median':>10} {'p99':>10}")
    for name, found in values.items():
        if found:
            print(f"{name:24} {percentile(found, 50) * 1e3:7.2f} ms {percentile(found, 99) * 1e3:7.2f} ms")
    return held


def main() -> int:
    """Measure each number of sessions; returns 0 if the first was held."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="laptop", help="name or path of a deploy profile")
    parser.add_argument("--model", help="name or path of a model config, instead of the profile's")
    parser.add_argument("--sessions", type=int, nargs="+", default=[1], metavar="N")
    parser.add_argument("--seconds", type=float, default=20.0, help="measured, of each")
    arguments = parser.parse_args()
    if not all(1 <= n <= HIGHEST for n in arguments.sessions) or not 1 <= arguments.seconds <= 3600:
        parser.error(f"--sessions are 1 to {HIGHEST}, --seconds 1 to 3600")
    profile = load_profile(arguments.profile)
    # The bench measures the device's resources, so Ray's own numbers must not run out first.
    profile = dataclasses.replace(profile, cpus=0.01, gpus=1.0 if profile.gpus == 1 else 0.01)
    if arguments.model:
        profile = dataclasses.replace(profile, model=arguments.model)
    topology = plan_topology(profile)

    os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # a Ray of its own, for this run only
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    ray.init("local", include_dashboard=False, log_to_driver=False, object_store_memory=500 << 20)
    try:
        held = [measure(topology, n, arguments.seconds) for n in arguments.sessions]
    finally:
        ray.shutdown()
    return 0 if held[0] else 1


if __name__ == "__main__":
    raise SystemExit(main())
