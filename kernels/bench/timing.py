"""Timing of captured CUDA graphs over seconds, with clock and power: the speed that a card sustains.

A card at its power cap lowers its clock within a second; the first replays of a graph are 5 to 15 % faster.
"""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch


@dataclass(frozen=True)
class Timing:
    """One measured graph. All but `first_ms` are of the second half of the run.

    Attributes:
        ms: median time of a replay.
        first_ms: time of the second replay, before the clock falls.
        watts: mean power; nan if NVML doesn't report it.
        mhz: mean SM clock; nan likewise.
        times: of all replays from the first to the last.
    """

    ms: float
    first_ms: float
    watts: float
    mhz: float
    times: tuple[float, ...] = field(default=(), repr=False)

    def percentile(self, percent: float) -> float:
        """Milliseconds that this percentage of the second half's replays stayed within."""
        tail = sorted(self.times[len(self.times) // 2 :])
        return tail[min(len(tail) - 1, int(len(tail) * percent / 100))]

    def teraflops(self, flops: float) -> float:
        """Rate in TFLOP/s of a graph that does `flops` operations."""
        return flops / self.ms / 1e9

    def joules_per_teraflop(self, flops: float) -> float:
        """Energy of 1e12 operations."""
        return self.watts * self.ms * 1e-3 / (flops * 1e-12)

    def __str__(self) -> str:
        return f"{self.ms:.3f} ms (first {self.first_ms:.3f}), {self.mhz:.0f} MHz, {self.watts:.0f} W"


def capture(fn: Callable[[], object], warmup: int = 2) -> torch.cuda.CUDAGraph:
    """Capture fn, after running it `warmup` times on a side stream as capture asks for."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(warmup):
            fn()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.Stream(priority=-1)):  # as `characters.model.graph` does
        fn()
    return graph


class Replay(Protocol):
    """A CUDA graph, or what starts one."""

    def replay(self) -> None:
        """Queue the work."""


def sustained(graph: Replay, seconds: float = 4.0, replays: int | None = None) -> Timing:
    """Replay a graph back to back and time the second half.

    Two replays are always queued, so the card never waits for the host between them.

    Args:
        graph: what is timed.
        seconds: how long.
        replays: a number of replays instead, for GPUs that must all do the same.
    """
    meter = _Meter(torch.cuda.current_device())
    torch.cuda.synchronize()
    events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
    readings: list[_Reading] = []
    start = time.perf_counter()
    while (share := len(events) / replays if replays else (time.perf_counter() - start) / seconds) < 1 or len(
        events
    ) < 4:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        events.append((begin, end))
        if len(events) > 2:
            events[-3][1].synchronize()
        if share >= 0.5:
            readings.append(meter.read())
    torch.cuda.synchronize()
    times = [begin.elapsed_time(end) for begin, end in events]
    return Timing(
        ms=statistics.median(times[len(times) // 2 :]),
        first_ms=times[1],
        watts=_mean_power(readings),
        mhz=statistics.fmean(reading.mhz for reading in readings) if readings else float("nan"),
        times=tuple(times),
    )


class _Reading(NamedTuple):
    seconds: float
    joules: float
    watts: float
    mhz: float


def _mean_power(readings: list[_Reading]) -> float:
    """Watts between the first and the last reading, from the energy counter; without one, from the power gauge."""
    if len(readings) < 2:
        return readings[0].watts if readings else float("nan")
    energy = readings[-1].joules - readings[0].joules
    if energy > 0:
        return energy / (readings[-1].seconds - readings[0].seconds)
    return statistics.fmean(reading.watts for reading in readings)


class _Meter:
    """Energy counter, power gauge and SM clock of one GPU, from NVML, which comes with the driver."""

    _SM_CLOCK = 1  # NVML_CLOCK_SM

    def __init__(self, device: int) -> None:
        self._handle = ctypes.c_void_p()
        self._nvml: ctypes.CDLL | None
        uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}".encode()
        try:
            self._nvml = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            self._nvml = None
        else:
            self._nvml.nvmlInit_v2()
            self._nvml.nvmlDeviceGetHandleByUUID(uuid, ctypes.byref(self._handle))

    def read(self) -> _Reading:
        """The card's readings now; nan for what it does not report."""
        return _Reading(
            seconds=time.perf_counter(),
            joules=self._get("nvmlDeviceGetTotalEnergyConsumption", ctypes.c_ulonglong()) * 1e-3,
            watts=self._get("nvmlDeviceGetPowerUsage", ctypes.c_uint()) * 1e-3,
            mhz=self._get("nvmlDeviceGetClockInfo", ctypes.c_uint(), self._SM_CLOCK),
        )

    def _get(self, function: str, value: ctypes._SimpleCData, *arguments: int) -> float:
        if not self._handle.value or getattr(self._nvml, function)(self._handle, *arguments, ctypes.byref(value)):
            return float("nan")
        return float(value.value)
