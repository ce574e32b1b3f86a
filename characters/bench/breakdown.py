"""Where the time of a step goes, by kind of work."""

from __future__ import annotations

import re
from collections.abc import Callable

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

# Kernel names by kind; the first match counts. FlashAttention is built on CUTLASS, as are many matrix products.
KINDS = {
    "attention": r"flash|fmha|attend|cudnn.*(attention|sdpa)",
    "ring write": r"write_qkv|anchor_sink",
    "exchange": r"nccl|barrier|scatter_rows",
    "products": r"nvjet|gemm|cutlass|xmma|matmul|splitK",
    "norm": r"residual_norm|(layer|rms)_?norm|LayerNorm|RMSNorm",
    "GELU": r"gelu",
}
OTHER, IDLE = "other", "idle"


def breakdown(step: Callable[[], object]) -> dict[str, float]:
    """Profile one call.

    Returns:
        Milliseconds by kind, and those between kernels; empty if the driver lets no kernels be traced. Where several
        kernels run, time counts once, for the earliest one.
    """
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as trace:
        step()
        torch.cuda.synchronize()
    kernels = [e for e in trace.events() if e.device_type == DeviceType.CUDA]
    if not kernels:
        return {}
    return share_out([(k.name, k.time_range.start / 1e3, k.time_range.end / 1e3) for k in kernels])


def share_out(kernels: list[tuple[str, float, float]]) -> dict[str, float]:
    """Time by kind of kernels, each (name, start, end); see `breakdown`."""
    spent = dict.fromkeys((*KINDS, OTHER, IDLE), 0.0)
    kernels = sorted(kernels, key=lambda kernel: kernel[1])
    covered = kernels[0][1]
    for name, start, end in kernels:
        spent[IDLE] += max(0.0, start - covered)
        spent[kind_of(name)] += max(0.0, end - max(start, covered))
        covered = max(covered, end)
    return spent


def kind_of(name: str) -> str:
    """The kind of work that a kernel does, by its name."""
    return next((kind for kind, pattern in KINDS.items() if re.search(pattern, name, re.IGNORECASE)), OTHER)
