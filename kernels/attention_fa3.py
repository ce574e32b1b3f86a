"""FlashAttention-3 (Shah et al. 2024), wheel fa3-fwd, with its last wave filled.

An SM works on one block of queries of one head, and all blocks take equally long. 20 heads of 2,992 queries are 480
blocks: 3.6 waves of 132 SMs, which last as long as 4. Where it pays, a second launch beside the first takes the last
heads and splits the keys of each block among several SMs (Flash-Decoding, Dao et al. 2023). Its smaller pieces fill the
SMs that the last wave leaves idle.
"""

from __future__ import annotations

import functools
import math
import threading

import torch
from torch import Tensor

# Queries of a block for heads of 128 channels.
BLOCK = 128
HEAD_DIM = 128
MAX_SPLITS = 4
# Costs measured on an H200 (kernels/RESULTS.md), where a wave of whole blocks is 1: of a second launch, and of merging
# one piece on every SM.
LAUNCH, PIECE = 0.18, 0.045
# With fewer keys a wave is too short for a second launch.
KEYS = 8192

_local = threading.local()


def attend_fa3(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_scale: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> Tensor:
    """`kernels.attention.attend` by FlashAttention-3."""
    heads, device = q.shape[1], q.device
    first, splits = heads, 1
    if q.shape[2] == HEAD_DIM and len(k) >= KEYS:
        sms = torch.cuda.get_device_properties(device).multi_processor_count
        first, splits = split_last_wave(heads, -(-len(q) // BLOCK), sms)
    out = torch.empty(q.shape, dtype=torch.bfloat16, device=device)

    def launch(begin: int, end: int, splits: int) -> None:
        q_, k_, v_, out_ = (x[None, :, begin:end] for x in (q, k, v, out))
        scales = (None if s is None else s[None, begin:end] for s in (q_scale, k_scale, v_scale))
        q_descale, k_descale, v_descale = scales
        _operator()(
            q_, k_, v_, out=out_, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale, num_splits=splits
        )  # fmt: skip

    if first == heads:
        launch(0, heads, 1)
        return out
    main, side = torch.cuda.current_stream(device), _side_stream(device)
    side.wait_stream(main)
    launch(0, first, 1)  # first, so that its blocks start before the pieces
    with torch.cuda.stream(side):
        launch(first, heads, splits)
    main.wait_stream(side)
    return out


def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """One stream for each thread and device: a graph that this thread captures must not hold another thread's work."""
    streams = _local.__dict__.setdefault("streams", {})
    if device not in streams:
        streams[device] = torch.cuda.Stream(device)
    return streams[device]


@functools.cache
def _operator() -> torch._ops.OpOverload:
    import fa3_fwd_interface  # noqa: F401, registers it

    return torch.ops.fa3_fwd.fwd.default


@functools.cache
def split_last_wave(heads: int, blocks: int, sms: int) -> tuple[int, int]:
    """How many heads go into the first launch, and among how many SMs the keys of the others' blocks are split.

    Args:
        heads, blocks: of the attention, blocks of each head.
        sms: of the GPU.

    Returns:
        (heads, 1) if a second launch does not pay.
    """
    best = float(math.ceil(heads * blocks / sms)), heads, 1
    for first in range(1, heads):
        for splits in range(2, MAX_SPLITS + 1):
            pieces = (heads - first) * blocks * splits
            waves = _waves(first * blocks, pieces, splits, sms) + LAUNCH + PIECE * pieces / sms
            best = min(best, (waves, first, splits))
    return best[1:]


def _waves(blocks: int, pieces: int, splits: int, sms: int) -> float:
    """When the last SM is done: whole blocks first, then pieces of 1 / splits of a block on whatever SM is free."""
    full, last = divmod(blocks, sms)
    idle = sms - last  # SMs without a block in the last wave of whole ones
    if pieces <= idle * splits:
        return max(full + (last > 0), full + math.ceil(pieces / idle) / splits)
    return full + 1 + math.ceil((pieces - idle * splits) / sms) / splits
