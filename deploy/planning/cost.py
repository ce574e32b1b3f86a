"""What a chunk costs: milliseconds, memory and turn latency of a model under a plan on a kind of GPU.

A roofline with measured rates. Every term is work by rate, where small pieces reach less of the rate than large ones:

    products     2 (6 dim^2 + 2 dim ffn) rows layers,  at gemm / (1 + gemm_rows / rows)
    attention    4 tokens (context tokens) dim layers / sequence,  at attention / (1 + attention_heads / heads)
    elementwise  traffic rows dim layers,  at elementwise
    exchange     2 all-to-alls a layer of q, k, v and of the result,  at nvlink + a start each

The stages of a plan work at the same time on different chunks: the slowest sets the pace, their sum the latency.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from actors.pipeline.topology import chunks_in_flight
from actors.roles.timeline import MARGIN
from characters.chunk import FRAMES_PER_CHUNK, SAMPLE_RATE
from characters.errors import UserError
from characters.generate.hearing import hearing_of
from characters.model.config import ModelConfig
from characters.model.plan import RESERVED_BYTES, Format, ParallelPlan, Shard, memory_bytes, shard_rows, shards
from deploy.planning.rates import ModelTimes, Rates

_WAN_DECODER_FLOP = 26.1e12 / (FRAMES_PER_CHUNK * 704 * 1088)  # a pixel, of the direct convolutions
_WAN_ENCODER = 0.5  # of the decoder's work on a frame, estimated
_WAN_DECODER_WEIGHTS = 0.15e9  # bytes
_WAN_DECODER_STATE = 9200  # bytes a pixel: features and their past, from 6.7 GiB at 704x1088
_SMALL_DECODER_BYTES = 0.1e9  # weights and features of the small model's, estimated

Link = Literal["island", "host", "network"]
CROSSINGS: tuple[Link, ...] = ("island", "host", "network")


@dataclass(frozen=True, slots=True)
class Links:
    """What the parts of a placed session talk over.

    Attributes:
        groups: between one pipeline group and the next.
        decoder: between the last group and the decoder, all of which is in one island.
    """

    groups: tuple[Link, ...] = ()
    decoder: Link = "island"

    @property
    def crossings(self) -> int:
        """0 within one island; 1 more for every hop to another, 2 for every hop to another host."""
        return sum(CROSSINGS.index(link) for link in (*self.groups, self.decoder))


@dataclass(frozen=True, slots=True)
class StageCost:
    """One step of a chunk's way.

    Attributes:
        name: as in the topology, without the rank: "dit.0", "decoder".
        ms: median of one chunk, hand-over included.
    """

    name: str
    ms: float


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one session. Times are milliseconds.

    Attributes:
        stages: what works side by side.
        chunk: median of the slowest stage: what the deadline is about.
        p99: 99th percentile of it, to be compared with `deadline`.
        path: from a chunk's sound to its frames, at the median.
        turn: from the end of what a reply's first chunk waits for to its first frame: half a chunk until the border,
            the look-ahead, and the chunks in flight, as the topology has them. A chunk of a window model that is cut
            costs its path, a margin and half a frame. The voice (recognition, language model, synthesis) comes on top.
        memory: GB of the fullest GPU.
    """

    stages: tuple[StageCost, ...]
    chunk: float
    p99: float
    path: float
    turn: float
    memory: float


def deadline(model: ModelConfig) -> float:
    """Milliseconds that a chunk lasts, within which the next one must be made."""
    return 1e3 * model.clock.seconds


def look_ahead(model: ModelConfig) -> float:
    """Milliseconds of sound that a chunk hears beyond its own."""
    return 1e3 * hearing_of(model).ahead / SAMPLE_RATE


def estimate(name: str, model: ModelConfig, plan: ParallelPlan, rates: Rates, links: Links | None = None) -> Cost:
    """Predict.

    Args:
        name: of the model, to find it among what was measured.
        model: checked sizes.
        plan: fit for the model (see `actors.pipeline.topology.check_plan`).
        rates: of the GPUs.
        links: where the session's parts lie; all within one island if None.

    Raises:
        UserError: a decoder whose time nobody knows, or a sequence group or a split decoder without NVLink.
    """
    links = links or Links(tuple[Link, ...](["island"] * (plan.pipeline - 1)))
    measured = rates.models.get(name)
    if plan.sequence > 1 and rates.nvlink is None:
        raise UserError(f"{rates.name} has no NVLink, which a sequence group needs")
    if plan.decoder > 1 and rates.nvlink is None:
        raise UserError(f"{rates.name} has no NVLink, which a decoder over several GPUs needs")
    # Bands of rows: what they cost each other is in the rate, which was measured over two GPUs.
    decoder = _decoder_ms(name, model, rates, measured) / max(plan.decoder, 1)
    parts = shards(plan, model)[:: plan.sequence]
    stages = []
    for p, part in enumerate(parts):
        layers = part.layers[1] - part.layers[0]
        ms = _measured_dit(measured, model, plan, layers) if measured else share_ms(model, plan, rates, layers)
        if plan.sequence > 1:
            ms += _passes(model) * layers * _exchange_ms(model, plan.sequence, rates)
        if p < plan.pipeline - 1:
            ms += _hop_ms(part.rows * model.dit.dim * 2, links.groups[p], rates)
        elif plan.decoder:
            latent = 2 * model.latent_channels * math.prod(model.latent_size)
            ms += _hop_ms(plan.decoder * latent, links.decoder, rates)
        stages.append(StageCost(f"dit.{p}" if model.window is None else "generator", ms))
    frames = model.clock.frames * model.height * model.width * 1.5
    decoder += _hop_ms(frames, "host", rates)  # to the room's process, through the host's memory
    if plan.decoder:
        stages.append(StageCost("decoder", decoder))
    else:
        stages[-1] = StageCost(stages[-1].name, stages[-1].ms + decoder)
    audio = measured.audio if measured else 0.0
    if rates.device == "cpu":
        stages[0] = StageCost(stages[0].name, stages[0].ms + audio)  # the same cores
        audio = 0.0
    chunk = max(stage.ms for stage in stages)
    path = audio + sum(stage.ms for stage in stages)
    return Cost(
        stages=tuple(stages),
        chunk=chunk,
        p99=chunk * rates.jitter.value,
        path=path,
        turn=_turn(model, plan, path),
        memory=_memory(model, plan, rates, parts) / 1e9,
    )


def standby_memory(model: ModelConfig, plan: ParallelPlan, rates: Rates) -> float:
    """GB of the process that stands by for all of the model's: everything that each of them has loaded, together."""
    precision: Format = "fp8" if rates.gemm_fp8 else "bf16"
    loaded = sum(memory_bytes(part, model, precision) - RESERVED_BYTES for part in shards(plan, model))
    return (loaded + max(plan.decoder, 1) * _decoder_memory(model, plan) + RESERVED_BYTES) / 1e9


def share_ms(model: ModelConfig, plan: ParallelPlan, rates: Rates, layers: int) -> float:
    """All that one GPU of a sequence group computes for a chunk in `layers` layers, without waiting for the others."""
    rows = shard_rows(model.tokens, plan.sequence)
    elementwise = _ms(rates.traffic.value * rows * model.dit.dim * layers / 1e9, rates.elementwise.value)
    once = product_ms(model, plan, rates, layers) + attention_ms(model, plan, rates, layers) + elementwise
    return _passes(model) * once


def product_ms(model: ModelConfig, plan: ParallelPlan, rates: Rates, layers: int) -> float:
    """Matrix products of `layers` layers on one GPU of a sequence group, one pass."""
    dit, rows = model.dit, shard_rows(model.tokens, plan.sequence)
    flop = 2 * (6 * dit.dim**2 + 2 * dit.dim * dit.ffn_dim) * rows * layers
    rate = (rates.gemm_fp8 or rates.gemm_bf16).value
    return _ms(flop / 1e12 * (1 + rates.gemm_rows.value / rows), rate)


def attention_ms(model: ModelConfig, plan: ParallelPlan, rates: Rates, layers: int) -> float:
    """Self-attention of `layers` layers on one GPU of a sequence group, one pass."""
    rows = model.tokens
    context = rows if model.window is not None else (model.sink + model.ring) * rows
    heads = model.dit.num_heads // plan.sequence
    flop = 4 * rows * context * model.dit.dim * layers / plan.sequence
    rate = (rates.attention_fp8 or rates.attention_bf16).value
    return _ms(flop / 1e12 * (1 + rates.attention_heads.value / heads), rate)


def _measured_dit(measured: ModelTimes, model: ModelConfig, plan: ParallelPlan, layers: int) -> float:
    """A share of what was measured on one GPU; splitting is taken to be perfect."""
    return measured.dit * layers / model.dit.num_layers / plan.sequence


def _exchange_ms(model: ModelConfig, sequence: int, rates: Rates) -> float:
    """One layer's two all-to-alls: q, k, v in the cache's type there, the result in bfloat16 back."""
    assert rates.nvlink is not None and rates.exchange is not None
    rows, kept = shard_rows(model.tokens, sequence), 1 / sequence
    sent = rows * model.dit.dim * (3 * _cache_bytes(rates) + 2) * (1 - kept)
    return _ms(sent / 1e9, rates.nvlink.value) + 2 * rates.exchange.value / 1e3


def _decoder_ms(name: str, model: ModelConfig, rates: Rates, measured: ModelTimes | None) -> float:
    if measured:
        return measured.decoder
    if model.autoencoder.wan is None:
        raise UserError(f"nobody has measured the decoder of model {name!r} on {rates.name}")
    frames: float = FRAMES_PER_CHUNK * model.chunk
    if (window := model.window) is not None:  # all of a window is decoded; the frames that it begins with are encoded
        frames = window.pixels + _WAN_ENCODER * window.history
    return _ms(_WAN_DECODER_FLOP * frames * model.height * model.width / 1e12, rates.decoder.value)


def _turn(model: ModelConfig, plan: ParallelPlan, path: float) -> float:
    if model.window is not None:  # what was made before is cut away, and the frame that is shown meanwhile is not split
        return path + 1e3 * MARGIN + 500 / model.clock.fps
    limit = deadline(model)
    return limit / 2 + look_ahead(model) + chunks_in_flight(plan) * limit


def _passes(model: ModelConfig) -> int:
    """DiT passes of a chunk."""
    return len(model.sampler.steps) + (model.window is None and model.sampler.commit == "clean")


def _hop_ms(size: float, link: Link, rates: Rates) -> float:
    rate = {"island": rates.nvlink or rates.host, "host": rates.host, "network": rates.network}[link]
    return _ms(size / 1e9, rate.value)


def _memory(model: ModelConfig, plan: ParallelPlan, rates: Rates, parts: list[Shard]) -> float:
    """Bytes of the fullest GPU."""
    precision: Format = "fp8" if rates.gemm_fp8 else "bf16"
    shard = max(memory_bytes(part, model, precision) for part in parts)
    decoder = _decoder_memory(model, plan)
    return max(shard, decoder + RESERVED_BYTES) if plan.decoder else shard + decoder


def _decoder_memory(model: ModelConfig, plan: ParallelPlan) -> float:
    """Bytes of one decoder's weights and features."""
    if model.autoencoder.wan is None:
        return _SMALL_DECODER_BYTES
    pixels = model.height * model.width / max(plan.decoder, 1)
    return _WAN_DECODER_WEIGHTS + _WAN_DECODER_STATE * pixels


def _cache_bytes(rates: Rates) -> int:
    return 1 if rates.attention_fp8 else 2


def _ms(work: float, rate: float) -> float:
    """Work in units by units a second."""
    return 1e3 * work / rate
