"""How one session's DiT is spread over GPUs, and whether that can work; decided before any weight is read."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from characters.errors import UserError
from characters.model.config import DiTConfig, ModelConfig

# What the blocks' matrix products and the KV cache are kept in: the model's own dtype, or FP8.
Format: TypeAlias = Literal["bf16", "fp8"]
BYTES: dict[Format, int] = {"bf16": 2, "fp8": 1}

# FP8 products need Ada's or Hopper's tensor cores.
FP8_CAPABILITY = (8, 9)
# Matrix units and vector stores want rows in multiples of this.
ROW_MULTIPLE = 16
# What CUDA, its libraries and the graph's scratch take besides the buffers counted below.
RESERVED_BYTES = 3 << 30
# No plan is larger.
MAX_GPUS = 16


@dataclass
class ParallelPlan:
    """How one session's model is spread over GPUs.

    Attributes:
        pipeline: groups that the DiT's layers are split over.
        sequence: GPUs of each group; they split a chunk's rows, and the heads in attention.
        decoder: GPUs of the decoder; with 0 it runs in the process of the last DiT shard, with more than 1 each has a
            band of the picture's rows.
    """

    pipeline: int = 1
    sequence: int = 1
    decoder: int = 1

    @property
    def gpus(self) -> int:
        """GPUs of the DiT."""
        return self.pipeline * self.sequence

    def __str__(self) -> str:
        return f"pipeline={self.pipeline},sequence={self.sequence}"


@dataclass(frozen=True)
class Shard:
    """One GPU's part of the DiT.

    Attributes:
        stage: which group of layers, from 0.
        rank, ranks: within the sequence group.
        layers: half-open range of blocks.
        rows: of a chunk, padding included.
    """

    stage: int
    rank: int
    ranks: int
    layers: tuple[int, int]
    rows: int


@dataclass(frozen=True)
class GPU:
    """What a plan must know of the GPUs present, which are assumed to be alike.

    Attributes:
        count: of them.
        memory: free bytes on each.
        capability: CUDA's.
        name: for messages.
    """

    count: int
    memory: int
    capability: tuple[int, int]
    name: str = "this GPU"


def parse_plan(text: str) -> ParallelPlan:
    """ "sequence=3" or "pipeline=2,sequence=2" -> a plan.

    Raises:
        UserError: anything else.
    """
    sizes = {"pipeline": 1, "sequence": 1}
    for part in text.split(","):
        name, _, number = part.strip().partition("=")
        if name not in sizes or not number.isdecimal() or int(number) < 1:
            raise UserError(f"the plan {text!r} must be such as sequence=3, pipeline=2 or pipeline=2,sequence=2")
        sizes[name] = int(number)
    return ParallelPlan(**sizes)


def shard_rows(tokens: int, sequence: int) -> int:
    """Rows of a chunk on each GPU of a sequence group, padded to what matrix units take: 1008 each for 2992 over 3."""
    return tokens if sequence == 1 else -(-tokens // (ROW_MULTIPLE * sequence)) * ROW_MULTIPLE


def shards(plan: ParallelPlan, config: ModelConfig) -> list[Shard]:
    """The parts of all GPUs, stage by stage and rank by rank."""
    bounds = [config.dit.num_layers * p // plan.pipeline for p in range(plan.pipeline + 1)]
    rows = shard_rows(config.tokens, plan.sequence)
    return [
        Shard(stage, rank, plan.sequence, layers, rows)
        for stage, layers in enumerate(itertools.pairwise(bounds))
        for rank in range(plan.sequence)
    ]


def block_parameters(dit: DiTConfig) -> int:
    """Weights of one block's matrix products."""
    return 8 * dit.dim**2 + 2 * dit.dim * dit.ffn_dim


def memory_bytes(shard: Shard, config: ModelConfig, precision: Format) -> int:
    """GPU memory of one shard's weights, cache and activations."""
    dit, size, layers = config.dit, BYTES[precision], shard.layers[1] - shard.layers[0]
    # Embeddings, head and modulation stay in bfloat16 on every shard.
    weights = layers * block_parameters(dit) * size + (8 * dit.dim + dit.freq_dim + dit.text_dim) * dit.dim * 2
    if config.s2v is not None:  # which stay in bfloat16 too
        first, end = shard.layers
        weights += sum(first <= layer < end for layer in config.s2v.injected) * 6 * dit.dim**2 * 2
    chunk = config.tokens * dit.dim // shard.ranks
    # K and V of the context; the sink's K once more, before its rotation. A window keeps none.
    cache = config.rings * layers * chunk * (2 * (config.sink + config.ring) * size + 2 * config.sink)
    cache = 0 if config.window is not None else cache
    activations = shard.rows * (6 * dit.dim + 2 * dit.ffn_dim) * 2
    return weights + cache + activations + RESERVED_BYTES


def check_plan(plan: ParallelPlan, config: ModelConfig, name: str) -> None:
    """Refuse a plan that a model's sizes or its sampler don't allow. The message names the model `name`.

    Raises:
        UserError: with the nearest plan that works.
    """
    if reason := _decoder_misfit(plan.decoder, config):
        raise UserError(f"plan for model {name!r}: {reason}")
    if reason := _misfit(plan, config):
        near = _nearest(plan, lambda other: not _misfit(other, config))
        raise UserError(f"plan for model {name!r}: {reason}{_suggest(near)}")


def check_gpus(plan: ParallelPlan, config: ModelConfig, name: str, precision: Format, gpu: GPU) -> None:
    """Refuse a plan that the GPUs present cannot hold or compute.

    Raises:
        UserError: FP8 without the hardware, more GPUs than there are, or too little memory; with the nearest plan or
            context that works.
    """
    check_plan(plan, config, name)
    where = f"plan {plan} for model {name!r}"
    if precision == "fp8" and gpu.capability < FP8_CAPABILITY:
        major, minor = gpu.capability
        raise UserError(f"{where}: {gpu.name} (compute capability {major}.{minor}) has no FP8 products; use bf16")

    def works(other: ParallelPlan) -> bool:
        return other.gpus <= gpu.count and not _misfit(other, config) and _need(other, config, precision) <= gpu.memory

    if plan.gpus > gpu.count:
        reason = f"it needs {plan.gpus} GPUs and {gpu.count} {'is' if gpu.count == 1 else 'are'} present"
        raise UserError(f"{where}: {reason}{_suggest(_nearest(plan, works))}")
    if (need := _need(plan, config, precision)) > gpu.memory:
        reason = (
            f"a GPU would need {need / 1e9:.0f} GB in {precision} and {gpu.name} has {gpu.memory / 1e9:.0f} GB free"
        )
        fits = [c for c in range(1, config.ring) if _need(plan, replace(config, ring=c), precision) <= gpu.memory]
        shorter = f"; a context of {config.sink + fits[-1]} chunks would fit" if fits else ""
        raise UserError(f"{where}: {reason}{shorter}{_suggest(_nearest(plan, works))}")


def _decoder_misfit(gpus: int, config: ModelConfig) -> str:
    """Why a model's pictures cannot be decoded by so many GPUs; empty if they can."""
    if gpus in (0, 1):
        return ""
    if gpus < 0 or config.autoencoder.wan is None:
        return "decoder must be 0 or 1: only the Wan VAE's rows are split over GPUs"
    rows = config.latent_size[0]
    # The chroma planes of a band must be whole rows of I420.
    if rows % gpus or config.height % (4 * gpus):
        return f"decoder must divide the {rows} rows of a latent into bands of pixel rows in fours"
    return ""


def _misfit(plan: ParallelPlan, config: ModelConfig) -> str:
    """Why a model's sizes don't allow a plan; empty if they do."""
    dit, sampler = config.dit, config.sampler
    if plan.pipeline < 1 or plan.sequence < 1:
        return "pipeline and sequence must be at least 1"
    if config.window is not None and plan.gpus > 1:
        return "a model with a window runs in one process"
    if plan.pipeline > dit.num_layers:
        return f"pipeline is at most the number of layers, {dit.num_layers}"
    if dit.num_heads % plan.sequence:
        return f"sequence must divide the number of heads, {dit.num_heads}"
    if plan.pipeline > 1 and (len(sampler.steps) > 1 or sampler.commit != "reuse"):
        return "pipeline needs a sampler of one pass: steps [1.0], commit reuse"
    if plan.pipeline > 1 and dit.concat_previous:
        return "pipeline cannot feed a chunk's latent to the next (dit.concat_previous)"
    return ""


def _need(plan: ParallelPlan, config: ModelConfig, precision: Format) -> int:
    return max(memory_bytes(shard, config, precision) for shard in shards(plan, config))


def _nearest(plan: ParallelPlan, works: Callable[[ParallelPlan], bool]) -> ParallelPlan | None:
    """The working plan that is nearest in GPUs, and among those in kind."""

    def distance(other: ParallelPlan) -> tuple[int, int]:
        apart = abs(other.pipeline - plan.pipeline) + abs(other.sequence - plan.sequence)
        return abs(other.gpus - plan.gpus), apart

    return min(filter(works, _plans()), key=distance, default=None)


def _plans() -> Iterator[ParallelPlan]:
    for pipeline, sequence in itertools.product(range(1, MAX_GPUS + 1), repeat=2):
        if pipeline * sequence <= MAX_GPUS:
            yield ParallelPlan(pipeline, sequence)


def _suggest(plan: ParallelPlan | None) -> str:
    return f"; the nearest plan that works is {plan}" if plan else "; no plan works"
