"""One session as Ray actors, from sound to I420, with a stub room: does it meet the deadline, and what do actors cost?

    python -m actors.bench.pipeline --profile laptop --chunks 200
    python -m actors.bench.pipeline --profile h200x4 --chunks 2000
    python -m actors.bench.pipeline --profile h200x3 --paced --kill
    python -m actors.bench.pipeline --profile h200x4 --switch          # fused and NCCL exchange in turn, no restart

Without --paced a chunk leaves as soon as it is made, so its period is what the pipeline can do. With --paced frames
leave at 24 a second as in a room, and late chunks are counted. --kill ends one process after the other in mid-stream
and measures the time until the next frame. Exits with 1 if 24 frames a second were not held.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from omegaconf import OmegaConf
from torch import Tensor

from actors.pipeline.header import Header
from actors.pipeline.loop import LoopRole
from actors.pipeline.session import SessionSpec
from actors.pipeline.topology import StageSpec, Topology, load_profile, plan_topology
from actors.pipeline.trace import percentile
from actors.roles.aligner import AudioAligner
from actors.room.factory import build_roles
from characters.model.config import load_model_config
from characters.model.plan import parse_plan

if TYPE_CHECKING:
    from actors.pipeline.gang import Gang

WARM_UP = 20  # chunks
SWITCH_EVERY = 50
FREE = "actors.bench.pipeline:build_free"
PACED = "actors.room.factory:build_roles"
NEVER = 900.0


class Sink(LoopRole):
    """Stands in for the publisher: takes chunks as fast as they come."""

    def __init__(self, aligner: AudioAligner) -> None:
        self._aligner = aligner

    def step(self, header: Header | None, inputs: Mapping[str, Tensor]) -> tuple[Header, dict[str, Tensor]]:
        """See `LoopRole.step`."""
        assert header is not None
        self._aligner.played(header.index, len(inputs["pcm"]))
        return header, {}


def build_free(topology: Topology, stage: StageSpec) -> dict[str, LoopRole]:
    """A factory: as in a session, but nothing waits for the clock."""
    built = build_roles(topology, stage)
    if "publisher" in built:
        aligner = built["aligner"]
        assert isinstance(aligner, AudioAligner)
        built["publisher"] = Sink(aligner)
    return built


class Run:
    """One gang, and what has come out of it.

    Args:
        topology: what to run.
        paced: whether frames leave at the pace of the sound.
    """

    def __init__(self, topology: Topology, paced: bool) -> None:
        from actors.pipeline.gang import Gang

        self.topology, self.states = topology, list[tuple[float, str, str]]()
        self.gang: Gang = Gang(
            topology, factory=PACED if paced else FREE, max_rebuilds=1000, on_state=self._note, health_period=0.5
        )
        model = topology.model
        portrait = np.random.default_rng(0).integers(0, 255, (model.height, model.width, 3), np.uint8)
        began = time.monotonic()
        self.gang.start(SessionSpec(portrait), timeout=NEVER)
        print(f"started in {time.monotonic() - began:.1f} s", flush=True)

    def _note(self, state: str, reason: str) -> None:
        self.states.append((time.monotonic(), state, reason))

    def chunks(self) -> list[Header]:
        """Published ones; none while the room's process is not there."""
        import ray

        try:
            return list(self.gang.trace().chunks)
        except (ray.exceptions.RayError, KeyError):
            return []

    def wait_past(self, index: int) -> list[Header]:
        """Wait until chunk `index` has been published."""
        give_up = time.monotonic() + NEVER
        while True:
            chunks = self.chunks()
            if chunks and chunks[-1].index >= index:
                return chunks
            if time.monotonic() > give_up or self.gang.state == "failed":
                raise TimeoutError(f"chunk {index} never came: {self.gang.reason}")
            time.sleep(0.2)

    def switch_until(self, last: int) -> int:
        """Exchange one way, then the other, until chunk `last`; returns how often it was changed."""
        turns, at = 0, WARM_UP
        while at < last:
            newest = self.wait_past(at)[-1].index
            self._switch(("collective", "peer")[turns % 2], newest + 2 * len(self.topology.spans) + 8)
            turns, at = turns + 1, newest + SWITCH_EVERY
        return turns

    def _switch(self, exchange: str, chunk: int) -> None:
        for role in (role for stage in self.topology.stages for role in stage.roles if role.shard is not None):
            self.gang.ask(role.name, lambda dit: dit.switch(exchange, chunk))


def report(run: Run, chunks: list[Header]) -> bool:
    """Print the figures of a run; returns whether the model's frames a second were held."""
    spans, clock = run.topology.spans, run.topology.model.clock
    last = len(spans) - 1
    kept = [header for header in chunks if header.index >= WARM_UP]
    # When the last span before the publisher's, which makes the pictures, had ended.
    made = [header.stamps[2 * last - 1] for header in kept]
    periods = [b - a for a, b in pairwise(made)]
    inside = sum(period <= clock.seconds for period in periods) / len(periods)
    fps = clock.frames * len(periods) / (made[-1] - made[0])
    print(
        f"\n{len(periods)} chunks after {WARM_UP}: {fps:.2f} frames a second, {inside:.2%} of periods inside "
        f"{1e3 * clock.seconds:.1f} ms"
    )
    print(f"{'':24} {'median':>10} {'p99':>10} {'p99.9':>10}")

    def row(name: str, values: list[float]) -> None:
        if values:
            print(f"{name:24} " + " ".join(f"{percentile(values, level) * 1e3:7.2f} ms" for level in (50, 99, 99.9)))

    row("period", periods)
    seconds = run.gang.trace().seconds()
    for name, values in seconds.items():
        row(name, values[-len(kept) :])
    stages = sum(percentile(seconds[span], 50) for span in spans[:-1])
    hops = percentile(seconds["hops"], 50)
    share = hops / stages
    print(f"actors cost {hops * 1e3:.2f} ms a chunk over the stages' sum, {stages * 1e3:.2f} ms: {share:.1%}")
    return fps >= 0.999 * clock.fps


def report_memory() -> None:
    """Print what the GPUs hold, where there are some."""
    if shutil.which("nvidia-smi"):
        query = ["nvidia-smi", "--query-gpu=index,memory.used,clocks.sm,power.draw", "--format=csv,noheader"]
        print("GPU, memory, clock, power:\n" + subprocess.run(query, capture_output=True, text=True).stdout.rstrip())


def kill_each(run: Run) -> None:
    """Kill each process in turn; print how long the others waited, and the time until the next frame."""
    import ray

    for stage in run.topology.stages:
        newest = run.wait_past(run.wait_past(WARM_UP)[-1].index + 12)[-1].index
        time.sleep(1.5)  # so that the gang has heard of a snapshot
        pid: Any = ray.get(run.gang.handle(stage.roles[0].name).pid.remote())
        seen, killed = len(run.states), time.monotonic()
        os.kill(pid, signal.SIGKILL)
        while len(run.states) < seen + 2 and run.gang.state != "failed":
            time.sleep(0.02)
        noticed, running = run.states[seen][0] - killed, run.states[-1][0]
        chunks = run.wait_past(newest + 1)
        while not (shown := [h.stamps[2 * len(run.topology.spans) - 2] for h in chunks]) or shown[-1] < running:
            time.sleep(0.1)
            chunks = run.chunks()
        first = next(at for at in shown if at > running)
        print(
            f"SIGKILL of {stage.name:10} all stopped after {noticed:5.2f} s, "
            f"running again after {running - killed:6.2f} s, next frame after {first - killed:6.2f} s",
            flush=True,
        )


def main() -> int:
    """Run a pipeline; returns 0 if it held 24 frames a second."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="laptop", help="name or path of a deploy profile")
    parser.add_argument("--model", help="name or path of a model config, instead of the profile's")
    parser.add_argument("--plan", help="instead of the profile's, such as sequence=3 or pipeline=2,sequence=2")
    parser.add_argument(
        "--set", nargs="+", default=[], metavar="KEY=VALUE", help="of the model: ring=4 dit.num_layers=20"
    )
    parser.add_argument("--chunks", type=int, default=200)
    parser.add_argument("--paced", action="store_true", help="let frames leave at 24 a second")
    parser.add_argument("--kill", action="store_true", help="kill each process in mid-stream")
    parser.add_argument("--switch", action="store_true", help=f"change the exchange every {SWITCH_EVERY} chunks")
    arguments = parser.parse_args()
    if not 10 <= arguments.chunks <= 4000:
        parser.error("--chunks are 10 to 4000")
    profile = load_profile(arguments.profile)
    if arguments.plan:
        profile = dataclasses.replace(
            profile, plan=dataclasses.replace(parse_plan(arguments.plan), decoder=profile.plan.decoder)
        )
    with tempfile.TemporaryDirectory() as folder:
        model = arguments.model or profile.model
        if arguments.set:
            own = OmegaConf.structured(load_model_config(model))
            changed = OmegaConf.merge(own, OmegaConf.from_dotlist(arguments.set))
            model = str(Path(folder) / f"{Path(model).stem}.yaml")
            OmegaConf.save(changed, model)
            if any(change.startswith(("ring=", "sink=")) for change in arguments.set):
                profile = dataclasses.replace(profile, context=0)
        topology = plan_topology(dataclasses.replace(profile, model=model))
        os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # a Ray of its own, for this run only
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        import ray

        ray.init("local", include_dashboard=False, log_to_driver=False, object_store_memory=500 << 20)
        try:
            run = Run(topology, arguments.paced)
            try:
                last = WARM_UP + arguments.chunks
                if arguments.switch:
                    print(f"the exchange was changed {run.switch_until(last)} times")
                held = report(run, run.wait_past(last))
                report_memory()
                if arguments.kill:
                    kill_each(run)
            finally:
                run.gang.stop()
        finally:
            ray.shutdown()
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())
