"""Whether the fast step computes the right thing: precisions layer by layer, plans, the ring and the sink."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from characters.bench.launch import run
from characters.bench.step import Group, Job, Progressed, ShareOfStep, conditions, forget, portrait, weights
from characters.model.calibrate import CHUNKS, calibrate
from characters.model.dit import DiT
from characters.model.kv_cache import KVCache
from characters.model.materialise import build_dit
from characters.model.plan import ParallelPlan
from characters.model.quantise import Mode
from characters.model.sampler import Sampler
from kernels.fp8 import FP8, FP8_MAX
from kernels.write_qkv import rotate_pairs

# Chunks of the three comparisons: of all precisions, of FP8 with bfloat16, and of plans.
SHORT, LONG, PLANNED = 4, 64, 12
# A plan's progress is reported every so many chunks.
REPORTED = 4

# The layers after which errors are reported.
DEPTHS = (1, 2, 4, 8, 16, 32, 48)


@dataclass(frozen=True)
class Variant:
    """One way to compute: its dtype, and the scales of its FP8 products and cache."""

    dtype: torch.dtype
    fp8: Mode | None = None


VARIANTS = {
    "float32": Variant(torch.float32),
    "bf16": Variant(torch.bfloat16),
    "fp8 static": Variant(torch.bfloat16, "static"),
    "fp8 dynamic": Variant(torch.bfloat16, "dynamic"),
}


def check_numbers(job: Job, say: Callable[[str], None]) -> None:
    """Run all comparisons and report.

    All chunks pass through one layer before the next layer is built, since layers hand on nothing but the residual
    stream. So even the largest model is compared in float32 on one GPU. Models that see the chunk before
    (dit.concat_previous) are built whole.
    """
    device = torch.device(job.device)
    say(f"relative RMS error of the residual stream against float32, chunk {SHORT} of a stream:")
    _compare(job, device, list(VARIANTS), SHORT, say)
    say(f"and of the latents over {LONG} chunks, against bfloat16:")
    _compare(job, device, ["bf16", "fp8 static"], LONG, say)
    _check_ring(job, device, say)
    if job.plan.gpus == 1 or job.alone:
        say("the plan: nothing to compare on one GPU")
        return
    _check_plan(job, say)


def _check_plan(job: Job, say: Callable[[str], None]) -> None:
    """Compare the latents of a plan with those of one GPU."""
    work = partial(roll, chunks=PLANNED, say=say)
    say(f"plan {job.plan}, first on one GPU:")
    single = run(work, replace(job, plan=ParallelPlan()))[0]
    say(f"then on {job.plan.gpus}:")
    for rank, made in enumerate(run(work, job)):
        if made is not None:
            say(f"plan {job.plan}, rank {rank}, against one GPU, by chunk: {_errors(made, single)}")


def roll(job: Job, group: Group, progress: Progressed, *, chunks: int, say: Callable[[str], None]) -> Tensor | None:
    """The latents [chunks, channels, h, w] of a stream over a plan, on the CPU; None where another GPU has them.

    Rank 0 calls `say` with its progress.
    """
    began = time.perf_counter()

    def tell(what: str) -> None:
        if group.rank == 0:
            say(f"  {what} after {time.perf_counter() - began:.1f} s")

    share = ShareOfStep(job, group, progress)
    tell("ready")
    made = []
    for chunk in range(1, chunks + 1):
        made.append(share.replay().float().cpu())  # waits for the GPU
        if chunk % REPORTED == 0:
            tell(f"chunk {chunk} of {chunks}")
    share.sampler.exchange.check()
    return torch.cat(made) if group.last else None


def sink_mismatches(cache: KVCache) -> int:
    """How many numbers of the sink's K differ from a fresh rotation by float64 angles of the last chunk."""
    wrong, last, channels = 0, cache.index - 1, 2 * cache.rope.time_pairs
    cos, sin = (x[:1, : cache.rope.time_pairs].to(cache.keys.device) for x in cache.rope.table(last - cache.ring))
    for layer, (raw, ring) in enumerate(zip(cache.sink_keys, cache.keys[:, : cache.sink_rows], strict=True)):
        keys = rotate_pairs(raw[..., :channels].float(), cos, sin)
        if cache.scales is not None:
            scale = cache.scales[layer, 1, cache.own_heads][:, None]
            keys = (keys / scale).clamp(-FP8_MAX, FP8_MAX)
        found = ring[..., :channels].float()
        # An angle's last bit may change a rounding: neighbours of e4m3 are up to 1/8 apart, of bfloat16 1/128.
        step = 1 / 8 if ring.dtype == FP8 else 1 / 128
        wrong += int(((keys.to(ring.dtype).float() - found).abs() > step * found.abs().clamp_min(step)).sum())
    return wrong


def _compare(job: Job, device: torch.device, names: list[str], chunks: int, say: Callable[[str], None]) -> None:
    layers = job.config.dit.num_layers
    streams = {name: _Stream(job, VARIANTS[name], device, chunks) for name in names}
    exact, *others = streams.items()
    for span in [(0, layers)] if job.config.dit.concat_previous else [(i, i + 1) for i in range(layers)]:
        for stream in streams.values():
            stream.advance(span)
        if chunks == SHORT and (span[1] in DEPTHS or span[1] == layers):
            found = (f"{name} {_error(stream.made[-1], exact[1].made[-1]):.4f}" for name, stream in others)
            say(f"  {'latent' if span[1] == layers else f'layer {span[1]}'}: {', '.join(found)}")
    if chunks == LONG:
        for name, stream in others:
            say(f"  {name}, every 8th chunk: {_errors(stream.made[::8], exact[1].made[::8])}")


class _Stream:
    """A stream of chunks in one precision, in which all chunks pass a layer before the next one is built.

    Attributes:
        made: [1 + chunks, ...], what the last layer made of the sink and all chunks; of the whole model [chunks, ...].
    """

    def __init__(self, job: Job, variant: Variant, device: torch.device, chunks: int) -> None:
        self._config, self._variant, self._chunks = job.config, variant, chunks
        self._device = device
        self._source = weights(job, device, variant.dtype)
        self._reference = portrait(job.config, device).to(variant.dtype)
        self._calibrated: Tensor | None = None
        self.made: Tensor | None = None

    @torch.inference_mode()
    def advance(self, span: tuple[int, int]) -> None:
        """Let all chunks pass some more layers."""
        dit = build_dit(self._config, self._source, layers=span, fp8=self._variant.fp8)
        tokens = conditions(dit, self._device)
        if self._variant.fp8 is not None:
            # Scales come from another stream than the measured one.
            self._calibrated = calibrate(
                dit, self._reference, tokens, tokens, seed=99, chunks=CHUNKS, hidden=self._calibrated
            )
        self.made = self._pass(dit, tokens)
        forget()

    def _pass(self, dit: DiT, tokens: Tensor) -> Tensor:
        sampler = Sampler(dit, self._reference)
        sampler.tell(tokens)
        hidden = self.made
        made = list(sampler.prefill(tokens, None if hidden is None else hidden[:1]))
        for chunk in range(self._chunks):
            made.append(sampler.sample(hidden=None if hidden is None else hidden[1 + chunk].clone()).clone())
        return torch.stack(made if dit.head is None else made[1:])


def _check_ring(job: Job, device: torch.device, say: Callable[[str], None]) -> None:
    """In FP8, around the ring and after a month: only the current slot changes, and the sink is rotated exactly."""
    config = job.config
    layers = None if config.dit.concat_previous else (0, 1)
    dit = build_dit(config, weights(job, device, torch.bfloat16), layers=layers, fp8="static")
    reference, tokens = portrait(config, device).to(torch.bfloat16), conditions(dit, device)
    calibrate(dit, reference, tokens, tokens)
    sampler = Sampler(dit, reference, capture=True)
    sampler.tell(tokens)
    sampler.prefill(tokens)
    cache, touched, turned = sampler.cache, 0, 0
    steps = 2 * config.ring + 1
    for start in (0, 6 * 86400 * 30):  # chunk numbers: the first ones, and those after a month
        cache.index = start
        for _ in range(steps):
            slot, before = cache.slot(cache.index), cache.keys.view(torch.uint8).clone()
            sampler.sample()
            same = cache.keys.view(torch.uint8) == before
            same[:, slot] = True
            same[:, : cache.sink_rows, :, : 2 * cache.rope.time_pairs] = True
            touched += int((~same).sum())
            turned += sink_mismatches(cache)
    say(f"ring, {2 * steps} steps at the start and after a month, two wraps: {touched} bytes changed outside the slot,")
    say(f"  {turned} of the sink's keys differ from a fresh rotation")


def _error(a: Tensor, b: Tensor) -> float:
    a, b = a.float().to(b.device), b.float()
    return float((a - b).square().mean().sqrt() / b.square().mean().sqrt())


def _errors(made: Tensor, exact: Tensor) -> str:
    return " ".join(f"{_error(a, b):.4f}" for a, b in zip(made, exact, strict=True))
