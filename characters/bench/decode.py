"""The decoder of the large models on GPUs: time of a chunk and of its parts, memory, quality, the eager baseline."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import statistics
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from characters.errors import UserError
from characters.model.config import ModelConfig, WanVaeConfig
from characters.model.wan_vae.decoder import RGB
from characters.model.wan_vae.rows import Rows, SplitRows
from characters.model.wan_vae.stream import WanStreams, fastest_convolutions
from characters.model.wan_vae.vae import WanVae
from characters.model.wan_vae.workspace import Workspace
from kernels.group import open_group
from kernels.timing import Timing, capture, sustained

T = TypeVar("T")

DTYPE = torch.bfloat16
SEED = 5
# Of decoded signals in [-1, 1] that are compared: that of pictures. Random weights give a pale one, which would flatter
# every error.
CONTRAST = 0.5

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
        check: of a split picture: compare it with the whole one instead of timing it.
    """

    config: ModelConfig
    split: int = 1
    seconds: float = 8.0
    baseline: bool = True
    check: bool = False


@dataclass
class Result:
    """What one GPU measured; what failed is None, and said in `failures`.

    Attributes:
        launched: a chunk, from the latent to I420 on the GPU, launched kernel by kernel.
        chunk: the same as a captured graph.
        convolutions: the chunk's convolutions alone, on the same buffers; what the rest is measured against.
        flops: of the convolutions, which are all but some 2 %.
        parts: milliseconds by kind of work, of a chunk that is not captured.
        copied: the chunk while the one before is copied to the host.
        copy: the copy alone, in milliseconds.
        baseline: milliseconds of diffusers' eager decoder; also None if not wanted or not installed.
        stream_bytes: what a session's memory takes.
        bytes: what everything takes.
        differences: of a split picture from the whole one, in words.
        failures: what was not measured and why.
    """

    launched: Timing | None = None
    chunk: Timing | None = None
    convolutions: Timing | None = None
    flops: float | None = None
    parts: dict[str, float] | None = None
    copied: Timing | None = None
    copy: float | None = None
    baseline: float | None = None
    stream_bytes: int = 0
    bytes: int = 0
    differences: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def attempt(self, what: str, measure: Callable[[], T]) -> T | None:
        """A part of the measurement; if it fails, the others still count."""
        try:
            return measure()
        except Exception as error:
            self.failures.append(f"{what}: {type(error).__name__}: {error}")
            return None


def wan_config(config: ModelConfig, name: str) -> WanVaeConfig:
    """The model's Wan VAE. Raises UserError if it has another autoencoder; `name` is the model's."""
    if config.autoencoder.wan is None:
        raise UserError(f"model {name!r} has no Wan VAE to measure; try --model reference-57b")
    return config.autoencoder.wan


def run(job: Job) -> Result:
    """Measure a job, in a process for each GPU if there are several; what the first one found."""
    if job.split == 1:
        return _measure(0, job, None)
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_measure, (job, folder), nprocs=job.split)
        return torch.load(Path(folder) / "result", weights_only=False)


def build(config: ModelConfig, device: torch.device, dtype: torch.dtype = DTYPE) -> WanVae:
    """The model's autoencoder with random weights, the same on every GPU."""
    assert config.autoencoder.wan is not None
    torch.manual_seed(SEED)
    vae = WanVae(config.autoencoder.wan, config.latent_channels)
    return vae.to(device, dtype).eval().requires_grad_(False)


def smooth_latents(config: ModelConfig, chunks: int, device: torch.device) -> Tensor:
    """float32 [chunks, c, h, w], random but smooth in time and space, as latents of pictures are."""
    generator = torch.Generator(device).manual_seed(SEED)
    height, width = config.latent_size
    size = (max(chunks // 3, 2), max(height // 8, 2), max(width // 8, 2))
    coarse = torch.randn(1, config.latent_channels, *size, generator=generator, device=device)
    return F.interpolate(coarse, size=(chunks, height, width), mode="trilinear")[0].movedim(1, 0)


def _measure(rank: int, job: Job, folder: str | None) -> Result:
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    rows: SplitRows | None = None
    if folder is not None:
        open_group(f"{folder}/meet", rank, job.split, device)
        rows = SplitRows()
    result = _compare(job, device, rows) if rows is not None and job.check else _time(job, device, rows)
    if folder is not None:
        if rank == 0:
            torch.save(result, Path(folder) / "result")
        dist.barrier()
        dist.destroy_process_group()
    return result


@torch.inference_mode()
def _time(job: Job, device: torch.device, rows: Rows | None) -> Result:
    config, wan, result = job.config, job.config.autoencoder.wan, Result()
    assert wan is not None
    vae = build(config, device)
    height, width = config.latent_size
    size = (height // job.split, width)
    streams = WanStreams(vae, size, compact=wan.compact_cache, rows=rows)
    latent = smooth_latents(config, 2, device)[1:, :, : size[0]].to(DTYPE)
    frames = streams.advance(0, latent)
    result.stream_bytes = streams.workspace.bytes_per_stream

    def chunk() -> None:
        nonlocal frames
        frames = streams.advance(0, latent)

    # GPUs that wait for each other must replay as often as each other.
    replays = None if job.split == 1 else int(job.seconds / 0.05)
    result.launched = result.attempt("launched chunk", lambda: sustained(Launched(chunk), job.seconds / 4, replays))
    graph = result.attempt("capture", lambda: capture(chunk))
    captured = frames  # of the graph, from here on whatever is launched
    if graph is not None:
        result.chunk = result.attempt("captured chunk", lambda: sustained(graph, job.seconds, replays))
    result.bytes = torch.cuda.memory_allocated(device)

    recorder = Convolutions()

    def convolutions() -> None:
        with fastest_convolutions(DTYPE):
            recorder.run()

    def count() -> float:
        with FlopCounterMode(display=False) as counter:
            convolutions()
        return counter.get_total_flops()

    def record() -> None:
        with recorder:
            chunk()

    result.attempt("list of the convolutions", record)
    result.flops = result.attempt("count of operations", count)
    alone = result.attempt("capture of the convolutions", lambda: capture(convolutions))
    if alone is not None:
        result.convolutions = result.attempt("convolutions", lambda: sustained(alone, job.seconds, replays))
    result.parts = result.attempt("parts", lambda: _parts(chunk))
    if graph is not None:
        copying = result.attempt("buffers for copies", lambda: Copying(graph, captured))
        if copying is not None:
            result.copied = result.attempt("copied chunk", lambda: sustained(copying, job.seconds, replays))
            result.copy = result.attempt("copy", copying.alone)
    if job.baseline and job.split == 1:
        result.baseline = result.attempt("diffusers", lambda: _eager_baseline(config, device))
    return result


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


class Convolutions(TorchDispatchMode):
    """Notes the convolutions that are called, to call them again without all else."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Callable[..., Tensor], tuple[Any, ...], dict[str, Any]]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if "conv" in func.__name__:
            self._calls.append((func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))

    def run(self) -> None:
        """All of them, on the buffers that they had."""
        for func, args, kwargs in self._calls:
            func(*args, **kwargs)


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


def _parts(chunk: Callable[[], None], count: int = 5) -> dict[str, float]:
    """Milliseconds of a chunk's kernels, by part."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for _ in range(count):
            chunk()
        torch.cuda.synchronize()
    sums: dict[str, float] = {}
    for event in profiler.key_averages():
        # Operations of PyTorch count the kernels that they start; other kernels stand for themselves.
        own = event.self_device_time_total / 1e3 / count
        if own == 0 or not event.key.startswith(COUNTED):
            continue
        part = next((part for text, part in PARTS if text in event.key.lower()), "sums, copies")
        sums[part] = sums.get(part, 0.0) + own
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


def _eager_baseline(config: ModelConfig, device: torch.device, count: int = 15) -> float | None:
    """Milliseconds of a chunk by diffusers' decoder as its users call it, median; None without diffusers."""
    theirs = published_decoder(config, device, DTYPE)
    if theirs is None:
        return None
    z = smooth_latents(config, 1, device).movedim(0, 1)[None].to(DTYPE)
    times = []
    theirs.clear_cache()
    with fastest_convolutions(DTYPE):
        for i in range(count):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            theirs._conv_idx = [0]
            x = theirs.post_quant_conv(z)
            theirs.decoder(x, feat_cache=theirs._feat_map, feat_idx=theirs._conv_idx, first_chunk=i == 0)
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end))
    return statistics.median(times[count // 3 :])


def published_decoder(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> Any:
    """diffusers' autoencoder of the model's sizes, with random weights; None without diffusers, or for Wan 2.2's."""
    wan = config.autoencoder.wan
    try:
        from diffusers import AutoencoderKLWan
    except ModuleNotFoundError:
        return None
    if wan is None or wan.shortcuts:
        return None
    theirs = AutoencoderKLWan(
        base_dim=wan.encoder_dim,
        decoder_base_dim=wan.decoder_dim,
        z_dim=config.latent_channels,
        dim_mult=list(wan.multipliers),
        num_res_blocks=wan.residual_blocks,
        temperal_downsample=list(wan.temporal),
    )
    return theirs.to(device, dtype).eval().requires_grad_(False)


@torch.inference_mode()
def check_quality(config: ModelConfig, device: torch.device, chunks: int = 5) -> Iterator[tuple[str, float]]:
    """PSNR in dB of bfloat16 decoding, with an exact and a compact cache, against float32 without TF32."""
    latents = smooth_latents(config, chunks, device)
    with _without_tf32():
        wide = _with_contrast(build(config, device, torch.float32), latents)
        exact = _decode(wide, latents, compact=False)
    narrow = wide.to(DTYPE)
    yield "bf16, exact cache", _psnr(_decode(narrow, latents, compact=False), exact)
    yield "bf16, compact cache", _psnr(_decode(narrow, latents, compact=True), exact)


@torch.inference_mode()
def _compare(job: Job, device: torch.device, rows: SplitRows) -> Result:
    """Frames of a picture split by rows against those of the whole one, which the first GPU decodes as well."""
    small = dataclasses.replace(job.config, height=job.config.height // 2, width=job.config.width // 2)
    result = Result()
    with _without_tf32():
        for name, config, dtype in (("float32, half the size", small, torch.float32), ("bf16", job.config, DTYPE)):
            latents = smooth_latents(config, 4, device)
            vae = _with_contrast(build(config, device, torch.float32), latents).to(dtype)
            size = (config.latent_size[0] // job.split, config.latent_size[1])
            band = slice(rows.rank * size[0], (rows.rank + 1) * size[0])
            split = _frames(WanStreams(vae, size, rows=rows, compact=False), latents[:, :, band])
            if rows.rank == 0:
                whole = _frames(WanStreams(vae, config.latent_size, compact=False), latents)
                wrong = (split.int() - whole.int()).abs()
                result.differences.append(
                    f"{name}: largest difference {int(wrong.max())} of 255, {float((wrong > 0).float().mean()):.2%} of "
                    f"bytes differ, PSNR {_psnr(split / 127.5, whole / 127.5):.1f} dB"
                )
    return result


def _frames(streams: WanStreams, latents: Tensor) -> Tensor:
    """I420 of the chunks after the first, on the CPU."""
    streams.start(0, latents[:1])
    return torch.cat([streams.advance(0, latent[None]).cpu() for latent in latents[1:]])


def _with_contrast(vae: WanVae, latents: Tensor) -> WanVae:
    """The same with its last layer scaled so that the first frame has `CONTRAST`."""
    scale = CONTRAST / _decode(vae, latents[:1], compact=False).std().to(latents.device)
    vae.decoder.conv_out.weight.mul_(scale)
    vae.decoder.conv_out.bias.mul_(scale)
    return vae


@contextlib.contextmanager
def _without_tf32() -> Iterator[None]:
    before, torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.allow_tf32, False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


def _decode(vae: WanVae, latents: Tensor, *, compact: bool) -> Tensor:
    """float32 [frames, H, W, 3] on the CPU, in [-1, 1]."""
    workspace = Workspace(compact=compact)
    workspace.slot = torch.zeros((), dtype=torch.int64, device=latents.device)
    frames = []
    for i, latent in enumerate(latents.to(vae.mean.dtype)):
        frames.append(vae.decode(latent, workspace, first=i == 0).value()[..., :RGB])
    return torch.cat([frame.clamp(-1, 1).cpu() for frame in frames])


def _psnr(a: Tensor, b: Tensor) -> float:
    """Of signals in [-1, 1]."""
    error = float((a - b).square().mean())
    return 10 * math.log10(4 / error) if error else math.inf
