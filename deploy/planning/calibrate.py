"""Measures a machine's rates, as conf/gpus has them. Needs torch; a GPU is used if there is one."""

from __future__ import annotations

import dataclasses
import datetime
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import yaml
from torch import Tensor

from characters.model.plan import FP8_CAPABILITY
from characters.output import whole_file
from deploy.planning.rates import How, ModelTimes, Rate, Rates, load_rates
from kernels.attention import attend
from kernels.fp8 import FP8, Quantised
from kernels.linear import linear_fp8

_CHUNKS = 60  # of the small model, after a warm-up
_WARM_UP = 6


def calibrate(seconds: float = 2.0, say: Callable[[str], None] = lambda line: None) -> Rates:
    """Measure this machine.

    Args:
        seconds: for each figure; a GPU's clock falls within the first.
        say: told what is being measured.

    Returns:
        Rates under this device's own name; what could not be measured here is taken over from the nearest kind in
        conf/gpus, and says so.
    """
    gpu = torch.cuda.is_available()
    name = torch.cuda.get_device_name().removeprefix("NVIDIA ").replace(" ", "-") if gpu else "this-cpu"
    base = _nearest(name) if gpu else load_rates("CPU")
    device = torch.device("cuda" if gpu else "cpu")
    found: dict[str, Any] = {}

    def take(key: str, value: float, source: str) -> None:
        say(f"{key}: {value:,.4g} ({source})")
        digits = float(f"{value:.4g}")
        found[key] = Rate(digits, How.measured, datetime.date.today().isoformat(), source)

    # What a wide product and attention over many heads would reach is a little more than these do.
    rows, dim = (3024, 7680) if gpu else (512, 1024)
    size = f"{rows} x {dim} x {dim}"
    work = 2 * rows * dim * dim / 1e12 * (1 + base.gemm_rows.value / rows)
    x, w = (torch.randn(n, dim, device=device, dtype=torch.bfloat16) for n in (rows, dim))
    take("gemm_bf16", work / _seconds(lambda: x @ w.T, device, seconds), f"bfloat16 {size}")
    heads, tokens, keys = (60, 2992, 9 * 2992) if gpu else (4, 256, 1024)
    shape = f"{heads} heads, {tokens} x {keys}"
    attention = 4 * tokens * keys * heads * 128 / 1e12 * (1 + base.attention_heads.value / heads)
    q, k, v = (torch.randn(n, heads, 128, device=device, dtype=torch.bfloat16) for n in (tokens, keys, keys))
    take("attention_bf16", attention / _seconds(lambda: attend(q, k, v), device, seconds), f"bfloat16, {shape}")
    if gpu and torch.cuda.get_device_capability() >= FP8_CAPABILITY:
        x8, w8, one = x.to(FP8), w.to(FP8), torch.ones((), device=device)
        q8, k8, v8, ones = q.to(FP8), k.to(FP8), v.to(FP8), torch.ones(heads, device=device)

        def product() -> Tensor:
            return linear_fp8(Quantised(x8, one), Quantised(w8, one))

        def attend_fp8() -> Tensor:
            return attend(q8, k8, v8, q_scale=ones, k_scale=ones, v_scale=ones)

        take("gemm_fp8", work / _seconds(product, device, seconds), f"fp8 {size}")
        take("attention_fp8", attention / _seconds(attend_fp8, device, seconds), f"fp8, {shape}")
    spent = _seconds(lambda: x + F.layer_norm(x, (dim,)), device, seconds)
    take("elementwise", 10 * rows * dim / 1e9 / spent, f"layer norm and addition of {rows} x {dim}, 10 bytes each")
    if gpu:
        take("memory", torch.cuda.get_device_properties(0).total_memory / 1e9, "the driver")
        host = torch.empty(64 << 20, dtype=torch.uint8, pin_memory=True)
        far = torch.empty_like(host, device=device)
        take(
            "host", host.numel() / 1e9 / _seconds(lambda: far.copy_(host), device, seconds), "64 MiB from pinned memory"
        )
    if gpu and torch.cuda.device_count() > 1 and torch.cuda.can_device_access_peer(0, 1):
        a, b = (torch.empty(64 << 20, dtype=torch.uint8, device=f"cuda:{i}") for i in (0, 1))
        take("nvlink", a.numel() / 1e9 / _seconds(lambda: b.copy_(a), device, seconds), "64 MiB to the next GPU")
    say("the small model")
    found["models"] = {"small": _small_model(device)}
    kept = {f.name: getattr(base, f.name) for f in dataclasses.fields(Rates) if f.name not in ("name", "models")}
    for key, rate in kept.items():
        if isinstance(rate, Rate) and key not in found:
            kept[key] = dataclasses.replace(rate, how=How.estimated, source=f"not measured here; as the {base.name}")
    return Rates(**{**kept, **found, "name": name})


def write(rates: Rates, path: Path) -> None:
    """Write what `load_rates` reads.

    Raises:
        UserError: the file cannot be written.
    """

    def plain(value: Any) -> Any:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        if isinstance(value, dict):
            return {key: plain(v) for key, v in value.items()}
        return value.name if isinstance(value, How) else value

    content = {key: value for key, value in plain(rates).items() if value is not None}
    text = "# Written by `characters calibrate`.\n" + yaml.safe_dump(content, sort_keys=False, width=120)
    with whole_file(path) as file:
        file.write(text.encode())


def _nearest(name: str) -> Rates:
    """The kind in conf/gpus whose name the device's contains; the H200 for any other."""
    flat = name.lower().replace("-", "")
    return load_rates(next((kind for kind in ("H200", "H100", "A100", "RTX4090") if kind.lower() in flat), "H200"))


def _seconds(work: Callable[[], Any], device: torch.device, seconds: float) -> float:
    """Median seconds of one call, of the second half of `seconds`."""
    spent: list[float] = []
    give_up = time.perf_counter() + seconds
    with torch.inference_mode():
        work()
        while time.perf_counter() < give_up or len(spent) < 4:
            _wait(device)
            began = time.perf_counter()
            # On a GPU several in a row, so that the launch does not count.
            count = 10 if device.type == "cuda" else 1
            for _ in range(count):
                work()
            _wait(device)
            spent.append((time.perf_counter() - began) / count)
    return statistics.median(spent[len(spent) // 2 :])


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _small_model(device: torch.device) -> ModelTimes:
    """Median milliseconds a chunk, by stage."""
    from characters.chunk import MEL_BINS, SAMPLES_PER_CHUNK
    from characters.generate.hearing import WINDOW_FRAMES
    from characters.generate.networks import load_networks
    from characters.generate.stream import Stream

    model = load_networks("small", device)
    portrait = np.full((model.config.height, model.config.width, 3), 128, np.uint8)
    stream = Stream(model, portrait)
    window = np.zeros((WINDOW_FRAMES, MEL_BINS), np.float32)
    quiet = np.zeros(SAMPLES_PER_CHUNK, np.float32)
    timings = [stream.step(window, quiet).timings for _ in range(_WARM_UP + _CHUNKS)][_WARM_UP:]
    times = {stage: round(1e3 * statistics.median(t[stage] for t in timings), 3) for stage in timings[0]}
    threads = "" if device.type == "cuda" else f", {torch.get_num_threads()} threads"
    return ModelTimes(
        audio=times["audio"],
        dit=times["dit"],
        decoder=times["decode"],
        how=How.measured,
        date=datetime.date.today().isoformat(),
        source=f"{_CHUNKS} chunks, {str(model.dtype).removeprefix('torch.')}{threads}",
    )
