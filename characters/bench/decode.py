"""The decoder of the large models on GPUs: time of a chunk and of its parts, memory, the eager baseline.

Each finding is reported as soon as it is known, so that a run that fails or is stopped loses none.
"""

from __future__ import annotations

import math
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from characters.bench.decode_baseline import eager_chunk, published_decoder
from characters.bench.decode_quality import build, compare_bands, smooth_latents
from characters.bench.launch import spawn
from characters.bench.step import forget
from characters.errors import UserError
from characters.model.config import ModelConfig, WanVaeConfig
from characters.model.wan_vae.rows import SplitRows
from characters.model.wan_vae.stream import WanStreams, fastest_convolutions
from characters.model.wan_vae.vae import HALF
from kernels.bench.timing import Timing, capture, sustained
from kernels.comm.breakable_group import BreakableGroup
from kernels.comm.group import open_group

T = TypeVar("T")

GOAL_MS = 55.0
GOAL_SPEED_UP = 2.9
GOAL_STATE = 2.0  # GiB

# How the names of profiled events begin that are counted.
COUNTED = ("aten::", "_fill_halo", "_signal_to_i420", "nccl")

# Substrings of kernel names and of the operations that started them -> part of the decoder.
PARTS = (
    ("_fill_halo", "sum, norm, SiLU, halo"),
    ("_signal_to_i420", "I420"),
    ("nccl", "other bands"),
    ("conv", "convolutions"),
    ("softmax", "attention"),
    ("bmm", "attention"),
    ("mm", "1x1 convolutions"),
)


@dataclass(frozen=True)
class Job:
    """What is measured.

    Attributes:
        config: of the model.
        split: GPUs that share a picture's rows.
        seconds: of each measurement.
        baseline: measure diffusers' decoder as well.
        check: compare a split picture with the whole one, instead of timing.
    """

    config: ModelConfig
    split: int = 1
    seconds: float = 8.0
    baseline: bool = True
    check: bool = False


class Report:
    """Reports what one GPU measures. A part that fails is reported too, and the rest goes on.

    Args:
        say: called with each line.

    Attributes:
        complete: nothing has failed.
        flops: of a chunk's convolutions, all but some 2 % of its work; nan until they are counted.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say, self.complete, self.flops = say, True, math.nan

    def attempt(self, what: str, measure: Callable[[], T]) -> T | None:
        """Run a part of the measurement; None if it failed. Raises UserError if the user can put it right."""
        try:
            return measure()
        except UserError:
            raise
        except Exception as error:
            self.complete = False
            self.say(f"not measured: {what}: {type(error).__name__}: {error}")
            return None

    def time(self, name: str, measure: Callable[[], Timing]) -> Timing | None:
        """Report a row of figures."""
        timing = self.attempt(name, measure)
        if timing is not None:
            rate = "" if math.isnan(self.flops) else f", {timing.teraflops(self.flops):.0f} TFLOP/s"
            self.say(
                f"{name}: median {timing.ms:.1f} ms, p99 {timing.percentile(99):.1f}, first {timing.first_ms:.1f}{rate}"
                f", {timing.mhz:.0f} MHz, {timing.watts:.0f} W"
            )
        return timing


def wan_config(config: ModelConfig, name: str) -> WanVaeConfig:
    """The model's Wan VAE. Raises UserError if it has another autoencoder; `name` is the model's."""
    if config.autoencoder.wan is None:
        raise UserError(f"model {name!r} has no Wan VAE to measure; try --model reference-57b")
    return config.autoencoder.wan


def run(job: Job, say: Callable[[str], None]) -> bool:
    """Measure a job, in a process for each GPU if there are several.

    Args:
        job: what to measure.
        say: called with each finding of the first GPU, in its process: a module's own function.

    Returns:
        Whether nothing failed.
    """
    if job.split == 1:
        return _time(job, torch.device("cuda"), None, say)
    failed = torch.multiprocessing.get_context("spawn").Event()
    with tempfile.TemporaryDirectory() as folder:
        spawn(_one_of_several, (job, f"{folder}/meet", say, failed), job.split)
    return not failed.is_set()


def _one_of_several(rank: int, job: Job, path: str, say: Callable[[str], None], failed: Event) -> None:
    device = torch.device("cuda", rank)
    group = BreakableGroup(open_group(path, rank, job.split, device), device)
    rows = SplitRows(group)
    if job.check:
        for line in compare_bands(job.config, device, rows):
            say(f"split by rows over {job.split} GPUs, against the whole picture: {line}")
    elif not _time(job, device, rows, say if rank == 0 else lambda line: None):
        failed.set()
    forget()
    dist.barrier()
    group.close()
    dist.destroy_process_group()


@torch.inference_mode()
def _time(job: Job, device: torch.device, rows: SplitRows | None, say: Callable[[str], None]) -> bool:
    """One GPU's measurements, the surest first; whether nothing failed."""
    config, wan, report = job.config, job.config.autoencoder.wan, Report(say)
    assert wan is not None
    streams = WanStreams(build(config, device), config.latent_size, compact=wan.compact_cache, rows=rows)
    latent = smooth_latents(config, 2, device)[1:].to(HALF)
    frames = streams.advance(0, latent)
    say(f"a session's frames: {streams.workspace.bytes_per_stream / 2**30:.2f} GiB (goal {GOAL_STATE:.0f})")

    def chunk() -> None:
        nonlocal frames
        frames = streams.advance(0, latent)

    recorder = Convolutions()

    def convolutions() -> None:
        with fastest_convolutions(HALF):
            recorder.run()

    def count() -> float:
        with recorder:
            chunk()
        with FlopCounterMode(display=False) as counter:
            convolutions()
        return counter.get_total_flops()

    report.flops = report.attempt("count of operations", count) or math.nan
    # GPUs that wait for each other must replay as often as each other.
    replays = None if job.split == 1 else int(job.seconds / 0.05)
    report.time("chunk, launched kernel by kernel", lambda: sustained(Launched(chunk), job.seconds / 4, replays))
    graph = report.attempt("capture", lambda: capture(chunk))
    captured, whole = frames, None  # of the graph, from here on whatever is launched
    if graph is not None:
        whole = report.time("chunk, captured", lambda: sustained(graph, job.seconds, replays))
        if whole is not None and job.split == 1:
            say(f"chunk: {whole.ms:.1f} ms (goal {GOAL_MS:.0f})")
        say(f"memory, all told: {torch.cuda.memory_allocated(device) / 2**30:.1f} GiB")
    alone = report.attempt("capture of the convolutions", lambda: capture(convolutions))
    if alone is not None:
        bare = report.time("convolutions alone", lambda: sustained(alone, job.seconds, replays))
        if bare is not None and whole is not None:
            say(f"share of the convolutions' ceiling: {bare.ms / whole.ms:.1%}")
    if graph is not None:
        copying = report.attempt("buffers for copies", lambda: Copying(graph, captured))
        if copying is not None:
            copied = report.time("chunk with its copy to the host", lambda: sustained(copying, job.seconds, replays))
            copy = report.attempt("copy", copying.alone)
            if copied is not None and copy is not None and whole is not None:
                shown = copied.ms - whole.ms
                say(f"copy to pinned memory: {copy:.2f} ms, of which {shown:+.2f} ms show in the chunk")
    parts = report.attempt("parts", lambda: _parts(chunk, device))
    if parts:
        say("launched: " + ", ".join(f"{part} {ms:.2f}" for part, ms in parts.items()) + " ms")
    if job.baseline and job.split == 1:
        _compare_with_diffusers(report, config, device, whole)
    return report.complete


def _compare_with_diffusers(report: Report, config: ModelConfig, device: torch.device, whole: Timing | None) -> None:
    try:
        theirs = report.attempt("diffusers", lambda: published_decoder(config, device))
    except UserError as error:  # nothing has failed
        report.say(f"no baseline: {error}")
        return
    if theirs is None:
        return
    for name, tuned in (("diffusers, eager", False), ("diffusers, eager, convolutions tuned", True)):
        ms = report.attempt(name, lambda tuned=tuned: eager_chunk(theirs, config, device, tuned=tuned))
        if ms is not None:
            ratio = "" if whole is None else f"; speed-up {ms / whole.ms:.2f} (goal {GOAL_SPEED_UP})"
            report.say(f"{name}: {ms:.1f} ms{ratio}")


class Launched:
    """Work that is launched kernel by kernel, timed as a graph is.

    Args:
        work: one replay.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work

    def replay(self) -> None:
        """Launch it."""
        self._work()


class Like:
    """What a tensor looks like, without its memory."""

    def __init__(self, tensor: Tensor) -> None:
        self._shape, self._stride = tensor.shape, tensor.stride()
        self._dtype, self._device = tensor.dtype, tensor.device

    def empty(self) -> Tensor:
        """Another one."""
        return torch.empty_strided(self._shape, self._stride, dtype=self._dtype, device=self._device)


class Convolutions(TorchDispatchMode):
    """Records the convolutions that are called, to call them again without anything between them."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Callable[..., Tensor], tuple[Any, ...], dict[str, Any]]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if "conv" in func.__name__:
            # A kept output would keep its memory from others.
            given = {name: Like(value) if name == "out" else value for name, value in kwargs.items()}
            self._calls.append((func, args, given))
        return func(*args, **kwargs)

    def run(self) -> None:
        """Call all of them again, on the same buffers."""
        for func, args, kwargs in self._calls:
            func(*args, **{name: v.empty() if isinstance(v, Like) else v for name, v in kwargs.items()})


class Copying:
    """A captured chunk whose frames go to pinned memory while the next one is decoded.

    Args:
        graph: leaves its result in `frames`.
        frames: on the GPU.
    """

    def __init__(self, graph: torch.cuda.CUDAGraph, frames: Tensor) -> None:
        self._graph, self._frames, self._count = graph, frames, 0
        self._side = torch.cuda.Stream(frames.device)
        # The graph's own result is overwritten by the next replay.
        self._taken = [torch.empty_like(frames) for _ in range(2)]
        self._host = [torch.empty(frames.shape, dtype=frames.dtype, pin_memory=True) for _ in range(2)]
        self._done = [torch.cuda.Event() for _ in range(2)]

    def replay(self) -> None:
        """Decode a chunk, and start its copy."""
        slot = self._count % 2
        self._count += 1
        here = torch.cuda.current_stream()
        self._graph.replay()
        here.wait_event(self._done[slot])  # of the chunk before the last
        self._taken[slot].copy_(self._frames)
        self._side.wait_stream(here)
        with torch.cuda.stream(self._side):
            self._host[slot].copy_(self._taken[slot], non_blocking=True)
            self._done[slot].record()

    def alone(self, count: int = 20) -> float:
        """Milliseconds of a copy by itself, median."""
        times = []
        for _ in range(count):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            self._host[0].copy_(self._taken[0], non_blocking=True)
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end))
        return statistics.median(times)


def _parts(chunk: Callable[[], None], device: torch.device, count: int = 5) -> dict[str, float]:
    """Milliseconds of a chunk's kernels, by part."""
    torch.cuda.synchronize(device)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as profiler:
        for _ in range(count):
            chunk()
        torch.cuda.synchronize(device)
    sums: dict[str, float] = {}
    for event in profiler.key_averages():
        # Operations of PyTorch count the kernels that they start; other kernels stand for themselves.
        own = event.self_device_time_total / 1e3 / count
        if own == 0 or not event.key.startswith(COUNTED):
            continue
        part = next((part for text, part in PARTS if text in event.key.lower()), "sums, copies")
        sums[part] = sums.get(part, 0.0) + own
    return dict(sorted(sums.items(), key=lambda item: -item[1]))
