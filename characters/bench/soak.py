"""Thousands of steps in a row: the tail of their times, memory, and whether ring and sink are still exact."""

from __future__ import annotations

import resource
from collections.abc import Callable
from functools import partial
from statistics import median

import torch

from characters.bench.check import sink_mismatches
from characters.bench.launch import run
from characters.bench.step import Group, Job, Progressed, ShareOfStep
from kernels.timing import sustained

# Steps over which a clock that drifts is taken to be steady.
WINDOW = 100


def soak_steps(job: Job, count: int, say: Callable[[str], None]) -> None:
    """Run `count` steps on every GPU of a job and report."""
    for rank, (times, memory, host, sink) in enumerate(run(partial(soak, count=count), job)):
        steady = [t / median(times[i : i + WINDOW]) for i in range(0, count, WINDOW) for t in times[i : i + WINDOW]]
        say(
            f"rank {rank}: {count:,} steps, median {median(times):.2f} ms, p99.9 {_percentile(times, 99.9):.2f} ms, "
            f"p99.9 over the median of its {WINDOW} steps {_percentile(steady, 99.9):.4f} (goal 1.05)"
        )
        say(
            f"rank {rank}: GPU memory {_signed(memory)} bytes, host memory {_signed(host)} KiB, "
            f"{sink} of the sink's keys off a fresh rotation"
        )


def soak(job: Job, group: Group, progress: Progressed, *, count: int) -> tuple[list[float], int, int, int]:
    """One GPU's part of it.

    Returns:
        Milliseconds of all steps; growth of GPU memory in bytes and of the host's in KiB; how many of the sink's keys
        are not what a fresh rotation gives.
    """
    share = ShareOfStep(job, group, progress)
    sustained(share, replays=WINDOW)
    before, host = torch.cuda.memory_reserved(), _host_memory()
    timing = sustained(share, replays=count)
    share.sampler.exchange.check()
    memory = torch.cuda.memory_reserved() - before
    return list(timing.times), memory, _host_memory() - host, sink_mismatches(share.sampler.cache)


def _percentile(values: list[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def _host_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _signed(number: int) -> str:
    return f"{number:+,}"
