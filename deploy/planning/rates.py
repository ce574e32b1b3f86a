"""How fast one kind of GPU (or CPU) is: conf/gpus/NAME.yaml, each figure with where it comes from."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from omegaconf import MISSING

from characters.config import load_conf


class How(Enum):
    """Where a figure comes from: measured, fitted to measurements, or estimated."""

    measured = "measured"
    fitted = "fitted"
    estimated = "estimated"


@dataclass
class Rate:
    """One figure.

    Attributes:
        value: the figure, in the unit that the key's own meaning states.
        how: whether the figure was measured, fitted to measurements, or estimated.
        date: day of the measurement or estimate, YYYY-MM-DD.
        source: what was measured, or what the estimate rests on.
    """

    value: float = MISSING
    how: How = MISSING
    date: str = MISSING
    source: str = MISSING


@dataclass
class ModelTimes:
    """Milliseconds of one chunk of one model on one device, as a whole. They go before the formulas.

    Attributes:
        audio: milliseconds of the audio features and their encoder.
        dit: milliseconds of all passes of the DiT; of a window model, whose chunk is one piece of work, maybe of the
            whole chunk, with 0 for the others.
        decoder: milliseconds from latent to frames.
        how, date, source: as of a `Rate`.
    """

    audio: float = MISSING
    dit: float = MISSING
    decoder: float = MISSING
    how: How = MISSING
    date: str = MISSING
    source: str = MISSING


@dataclass
class Rates:
    """One kind of device.

    Attributes:
        name: of the kind, e.g. "H200".
        device: "cuda" or "cpu".
        memory: GB (1e9 bytes) of one device.
        island: GPUs that NVLink joins in an ordinary host; 1 without NVLink.
        gemm_fp8, gemm_bf16: TFLOP/s of a wide matrix product, sustained for seconds; no fp8 = bfloat16 throughout.
        gemm_rows: rows at which a product reaches half of that.
        attention_fp8, attention_bf16: TFLOP/s with many heads, sustained.
        attention_heads: heads at which it reaches half of that.
        elementwise: GB/s of norms, casts and additions between the products.
        traffic: bytes that these move for each row, channel and layer.
        decoder: TFLOP/s of the Wan VAE decoder.
        nvlink: GB/s that one GPU sends within its island, all to all.
        exchange: microseconds that one all-to-all costs before the first byte.
        host: GB/s between islands of one host.
        network: GB/s between hosts.
        jitter: 99th percentile of a chunk's time by its median.
        sharing: share of a device's time that sessions sharing it may fill.
        models: what has been measured as a whole, by model name.
    """

    name: str = MISSING
    device: str = "cuda"
    memory: Rate = MISSING
    island: Rate = MISSING
    gemm_fp8: Rate | None = None
    gemm_bf16: Rate = MISSING
    gemm_rows: Rate = MISSING
    attention_fp8: Rate | None = None
    attention_bf16: Rate = MISSING
    attention_heads: Rate = MISSING
    elementwise: Rate = MISSING
    traffic: Rate = MISSING
    decoder: Rate = MISSING
    nvlink: Rate | None = None
    exchange: Rate | None = None
    host: Rate = MISSING
    network: Rate = MISSING
    jitter: Rate = MISSING
    sharing: Rate = MISSING
    models: dict[str, ModelTimes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.device not in ("cpu", "cuda"):
            raise ValueError(f"device must be cpu or cuda, not {self.device!r}")
        for key, rate in vars(self).items():
            if isinstance(rate, Rate) and not rate.value >= 0:
                raise ValueError(f"{key} must not be negative")
        for key in ("memory", "island", "gemm_bf16", "attention_bf16", "elementwise", "decoder", "host", "network"):
            if not getattr(self, key).value > 0:
                raise ValueError(f"{key} must be positive")
        if self.jitter.value < 1 or not 0 < self.sharing.value <= 1:
            raise ValueError("jitter must be at least 1, sharing above 0 and at most 1")
        if (self.gemm_fp8 is None) != (self.attention_fp8 is None):
            raise ValueError("gemm_fp8 and attention_fp8 belong together")
        if self.island.value > 1 and (self.nvlink is None or self.exchange is None):
            raise ValueError("an island of several GPUs needs nvlink and exchange")


def load_rates(kind: str) -> Rates:
    """Read conf/gpus/NAME.yaml or a path, see `characters.config.load_conf`, which raises UserError."""
    return load_conf("gpus", kind, Rates, "kind of GPU")
