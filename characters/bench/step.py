"""One GPU's share of a step, built and timed: of the real plan, with a process for each GPU, or of one rank alone."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from characters.bench.alone import AloneExchange
from characters.bench.breakdown import breakdown
from characters.bench.launch_style import LaunchStyleStep
from characters.generate.group import ModelPeers
from characters.generate.networks import PROMPT_TOKENS
from characters.model.calibrate import CHUNKS, calibrate
from characters.model.config import ModelConfig
from characters.model.dit import DiT
from characters.model.framepack import LATENTS
from characters.model.materialise import RandomWeights, SafetensorsWeights, Source, build_dit
from characters.model.plan import Format, ParallelPlan, Shard, block_parameters, shards
from characters.model.quantise import Mode, needs_calibration
from characters.model.sampler import Sampler
from kernels.bench.floor import Floor, measure_floor
from kernels.bench.timing import Timing, sustained
from kernels.comm.exchange import Exchange, LocalExchange

# Called with the number of blocks built and of all.
Progressed: TypeAlias = Callable[[int, int], None]

# Condition tokens of a text; their number hardly matters.
CONDITIONS = 64
DTYPE = torch.bfloat16


@dataclass(frozen=True)
class Job:
    """What is measured.

    Attributes:
        config: of the model, context included.
        plan: over how many GPUs.
        alone: one rank of the plan on one GPU.
        format: of products and cache; mode: of the FP8 scales.
        weights: safetensors; None = random.
        seconds: of each measurement.
        baseline: measure the launch-style step as well.
        floor: measure the bare products and attention as well.
        device: kind of device. On "cpu" results can be compared (`characters.bench.check`), not timed.
    """

    config: ModelConfig
    plan: ParallelPlan
    alone: bool
    format: Format = "fp8"
    mode: Mode = "static"
    weights: Path | None = None
    seconds: float = 8.0
    baseline: bool = False
    floor: bool = True
    device: str = "cuda"


@dataclass(frozen=True)
class Result:
    """What one GPU measured.

    Attributes:
        shard: its share.
        step: times by exchange, the best one first; chunk after chunk, waiting for other GPUs included.
        flops: of the share, padding not counted.
        floor: of the share, None if not asked for.
        kinds: milliseconds of one step by kind of work.
        baseline: the launch-style step, None if not asked for; distinct: its layers with weights of their own.
        memory: bytes that the step holds.
    """

    shard: Shard
    step: dict[str, Timing]
    flops: float
    floor: Floor | None
    kinds: dict[str, float]
    baseline: Timing | None
    distinct: int
    memory: int


class Group:
    """One process among those of a plan, or the only one.

    Args:
        job: what is measured.
        rank: of this process.
        device: of this process.
        path: of a file that all processes meet at; None = the only process.

    Attributes:
        exchanges: ways to join the sequence group by name, the best one first.
    """

    def __init__(self, job: Job, rank: int, device: torch.device, path: str | None) -> None:
        self.shard, self.device = shards(job.plan, job.config)[rank], device
        self.rank, self.ranks = rank, self.shard.ranks
        self.first, self.last = self.shard.stage == 0, self.shard.stage == job.plan.pipeline - 1
        self._peers = None if path is None else ModelPeers(path, self.shard, job.plan, device)
        self.exchanges: dict[str, Exchange] = {"local": LocalExchange(device)}
        if self._peers is not None:
            self.exchanges = self._peers.exchanges
        elif self.ranks > 1:
            self.exchanges = {"alone": AloneExchange(self.ranks, device)}

    @property
    def many(self) -> bool:
        """Whether there are other processes."""
        return self._peers is not None

    @property
    def sequence(self) -> dist.ProcessGroup | None:
        """The processes of the sequence group; None = this process is the only one."""
        return None if self._peers is None else self._peers.sequence

    def receive(self, into: Tensor) -> Tensor:
        """Receive what the part before sends, and return it."""
        dist.recv(into, self.rank - self.ranks)
        return into

    def send(self, hidden: Tensor) -> None:
        """Send to the next part."""
        dist.send(hidden.contiguous(), self.rank + self.ranks)

    def slowest(self, ms: float) -> float:
        """The largest of all processes' numbers."""
        if not self.many:
            return ms
        number = torch.tensor([ms], device=self.device)
        dist.all_reduce(number, dist.ReduceOp.MAX)
        return number.item()

    def close(self) -> None:
        """Leave, once all processes are here. No captured graph may be left: NCCL would wait for its end for ever."""
        if self._peers is not None:
            dist.barrier()
            self._peers.close()


class ShareOfStep:
    """A sampler ready to be replayed. It receives from the part before it and sends to the next, if there are any.

    Args:
        job: what is measured.
        group: this process among the others.
        progress: of the weights.
    """

    def __init__(self, job: Job, group: Group, progress: Progressed) -> None:
        config, device = job.config, group.device
        self._group = group
        mode = job.mode if job.format == "fp8" else None
        dit = build_dit(config, weights(job, device, DTYPE), layers=group.shard.layers, fp8=mode, progress=progress)
        self.tokens, s2v = conditions(dit, device), config.s2v
        clip = None if s2v is None else still(config, device)
        self._sound = None if s2v is None else noise(dit)
        reference, dim = portrait(config, device).to(DTYPE), config.dit.dim
        if mode is not None and needs_calibration(dit):
            before = self._before((config.sink + CHUNKS, config.tokens, dim))
            self._hand_on(
                calibrate(dit, reference, self.tokens, self.tokens, hidden=before, clip=clip, sound=self._sound)
            )
            forget()
        first, *others = group.exchanges.values()
        self.sampler = Sampler(dit, reference, capture=True, exchange=first)
        self.sampler.tell(self.tokens)
        self._hand_on(self.sampler.prefill(self.tokens, self._before((config.sink, group.shard.rows, dim)), clip))
        self._hidden = None if group.first else torch.zeros(group.shard.rows, dim, device=device, dtype=DTYPE)
        for self.sampler.exchange in (*others, first):
            self.sampler.warm(hidden=self._hidden, sound=self._sound)
        if s2v is not None:  # a ring that is full
            for _ in range(config.ring):
                self.sampler.sample(hidden=self._hidden, sound=self._sound)
        self.memory = 0
        if device.type == "cuda":
            torch.cuda.synchronize()
            self.memory = torch.cuda.memory_allocated(device)

    def replay(self) -> Tensor:
        """Queue one chunk; returns this part's result, in a buffer that the next call overwrites."""
        group = self._group
        if self._hidden is not None:
            group.receive(self._hidden)
        made = self.sampler.sample(hidden=self._hidden, sound=self._sound)
        if not group.last and group.many:
            group.send(made)
        return made

    def _before(self, shape: tuple[int, ...]) -> Tensor | None:
        if self._group.first:
            return None
        return self._group.receive(torch.empty(shape, device=self._group.device, dtype=DTYPE))

    def _hand_on(self, made: Tensor) -> None:
        if not self._group.last and self._group.many:
            self._group.send(made)


def weights(job: Job, device: torch.device, dtype: torch.dtype) -> Source:
    """What a job's networks are built from."""
    if job.weights is None:
        return RandomWeights(device, dtype)
    return SafetensorsWeights(job.weights, job.config, device, dtype)


def conditions(dit: DiT, device: torch.device) -> Tensor:
    """[1, conditions, dim]: of a still, or of a random text."""
    with torch.inference_mode():
        if dit.conditioning.text is None:
            return dit.conditioning.reference(1)
        generator = torch.Generator(device).manual_seed(2)
        count = CONDITIONS if dit.config.s2v is None else PROMPT_TOKENS
        text = torch.randn((1, count, dit.config.dit.text_dim), generator=generator, device=device)
        return dit.conditioning.text(text.to(dit.time_embedding[0].weight.dtype))


def portrait(config: ModelConfig, device: torch.device) -> Tensor:
    """float32 [1, channels, h, w], a random latent."""
    generator = torch.Generator(device).manual_seed(1)
    return torch.randn((1, config.latent_channels, *config.latent_size), generator=generator, device=device)


def still(config: ModelConfig, device: torch.device) -> Tensor:
    """[19, channels, h, w] in the model's dtype, random latents in place of a portrait that is held still."""
    generator = torch.Generator(device).manual_seed(3)
    shape = LATENTS, config.latent_channels, *config.latent_size
    return torch.randn(shape, generator=generator, device=device).to(DTYPE)


def noise(dit: DiT) -> tuple[Tensor, Tensor]:
    """[frames, tokens, dim] and [frames, dim], random sound of a model with s2v."""
    config, weight = dit.config, dit.time_embedding[0].weight
    assert config.s2v is not None
    generator = torch.Generator(weight.device).manual_seed(4)
    shape = config.chunk, config.s2v.speech.tokens + 2, config.dit.dim
    made = torch.randn(shape, generator=generator, device=weight.device).to(weight.dtype)
    return made[:, :-1], made[:, -1]


def step_flops(config: ModelConfig, shard: Shard) -> float:
    """Operations of one GPU's share of a chunk: products of its rows, and self-attention, of all passes."""
    layers, context = shard.layers[1] - shard.layers[0], config.sink + config.ring
    # Keys and values of the conditions are made once, not in a step.
    products = 2 * config.tokens * (block_parameters(config.dit) - 2 * config.dit.dim**2)
    attention = 4 * config.tokens * config.tokens * context * config.dit.dim
    return config.passes * layers * (products + attention) / shard.ranks


def measure(job: Job, group: Group, progress: Progressed) -> Result:
    """Measure one GPU's share. All processes of a plan call this at once."""
    shard, config = group.shard, job.config
    floor = None
    if job.floor:
        floor = measure_floor(
            rows=shard.rows,
            heads=config.dit.num_heads // shard.ranks,
            context=config.sink + config.ring,
            layers=config.passes * (shard.layers[1] - shard.layers[0]),
            tokens=config.tokens,
            dim=config.dit.dim,
            head_dim=config.dit.dim // config.dit.num_heads,
            seconds=job.seconds / 2,
        )
        forget()
    share = ShareOfStep(job, group, progress)
    step = {}
    for name, share.sampler.exchange in group.exchanges.items():
        step[name] = sustained(share, replays=_replays(group, share, job.seconds))
        group.exchanges[name].check()
    share.sampler.exchange = next(iter(group.exchanges.values()))
    kinds, memory = breakdown(share.replay), share.memory
    share = None
    forget()
    baseline, distinct = None, 0
    if job.baseline:
        launch = LaunchStyleStep(config, shard, CONDITIONS, group.sequence, group.device)
        distinct = launch.distinct
        baseline = sustained(_Eager(launch), replays=_replays(group, _Eager(launch), job.seconds))
    return Result(shard, step, step_flops(config, shard), floor, kinds, baseline, distinct, memory)


class _Eager:
    """A function, for `sustained` to replay."""

    def __init__(self, function: Callable[[], object]) -> None:
        self.replay = function


def _replays(group: Group, share: ShareOfStep | _Eager, seconds: float) -> int:
    """How many replays take this long; the same number on every GPU, because they wait for each other."""
    return max(8, math.ceil(seconds * 1e3 / group.slowest(sustained(share, replays=4).ms)))


def forget() -> None:
    """Free what only reference cycles hold. Samplers are such cycles, and their captured graphs go with them."""
    gc.collect()
    torch.cuda.empty_cache()
