"""Thousands of steps in a row: the tail of their times, memory, and whether ring and sink are still exact."""

from __future__ import annotations

import resource
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import NamedTuple

import torch

from characters.bench.check import sink_mismatches
from characters.bench.launch import run
from characters.bench.step import Group, Job, Progressed, ShareOfStep
from kernels.bench.sm_clock import CycleCounter
from kernels.bench.timing import Replay, sustained

# The clock drifts; over this many steps it is taken to be steady.
WINDOW = 100


class Soaked(NamedTuple):
    """What was measured on one GPU.

    Attributes:
        times: milliseconds of all steps.
        cycles: clock cycles of each step that one multiprocessor counted from beginning to end; None for others.
        memory: growth of GPU memory in bytes.
        host: growth of the host's memory in KiB.
        sink: how many of the sink's keys differ from a fresh rotation.
    """

    times: list[float]
    cycles: list[int | None]
    memory: int
    host: int
    sink: int


def soak_steps(job: Job, count: int, say: Callable[[str], None]) -> None:
    """Run `count` steps on every GPU of a job and report."""
    for rank, soaked in enumerate(run(partial(soak, count=count), job)):
        times, counted = soaked.times, sum(c is not None for c in soaked.cycles)
        say(
            f"rank {rank}: {count:,} steps, median {median(times):.2f} ms, p99.9 {_percentile(times, 99.9):.2f} ms; "
            f"p99.9 over the median of its {WINDOW} steps {_percentile(steadied(times), 99.9):.4f} in time, "
            f"{_percentile(steadied(soaked.cycles), 99.9):.4f} in cycles of the clock ({counted:,} steps; goal 1.05)"
        )
        say(
            f"rank {rank}: GPU memory {_signed(soaked.memory)} bytes, host memory {_signed(soaked.host)} KiB, "
            f"{soaked.sink} of the sink's keys differ from a fresh rotation"
        )


def soak(job: Job, group: Group, progress: Progressed, *, count: int) -> Soaked:
    """One GPU's part of `soak_steps`."""
    share = ShareOfStep(job, group, progress)
    sustained(_Counted(share, WINDOW, group.device), replays=WINDOW)
    counted = _Counted(share, count, group.device)
    before, host = torch.cuda.memory_reserved(), _host_memory()
    timing = sustained(counted, replays=count)
    share.sampler.exchange.check()
    memory = torch.cuda.memory_reserved() - before
    return Soaked(
        list(timing.times), counted.cycles(), memory, _host_memory() - host, sink_mismatches(share.sampler.cache)
    )


class _Counted:
    """A replay that counts its clock cycles."""

    def __init__(self, share: Replay, count: int, device: torch.device) -> None:
        self._share, self._counter = share, CycleCounter(2 * count, device)

    def replay(self) -> None:
        self._counter.read()
        self._share.replay()
        self._counter.read()

    def cycles(self) -> list[int | None]:
        cycles, multiprocessor = (x.view(-1, 2).tolist() for x in self._counter.readings())
        return [
            end - begin if first == last else None
            for (begin, end), (first, last) in zip(cycles, multiprocessor, strict=True)
        ]


def steadied(values: Sequence[float | None]) -> list[float]:
    """Each known value divided by the median of the known values among its WINDOW neighbours."""
    steady = []
    for start in range(0, len(values), WINDOW):
        known = [value for value in values[start : start + WINDOW] if value is not None]
        steady += [value / median(known) for value in known]
    return steady


def _percentile(values: list[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def _host_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _signed(number: int) -> str:
    return f"{number:+,}"
