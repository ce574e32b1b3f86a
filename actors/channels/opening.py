"""Opens the right kind of channel for an edge."""

from __future__ import annotations

from typing import Literal

import torch

from actors.channels.distributed import DistributedChannel
from actors.channels.protocol import Channel, End, TensorSpec
from actors.channels.shared_memory import SharedMemoryChannel

# "local" joins two roles of one process; the stage that holds both makes it.
Kind = Literal["local", "shared_memory", "gloo", "nccl"]


def open_channel(
    kind: Kind, spec: TensorSpec, end: End, path: str, *, slots: int, device: torch.device, timeout: float = 60.0
) -> Channel:
    """Open one end of a channel between two processes, waiting for the other end.

    Args:
        kind: "shared_memory", "gloo" or "nccl".
        spec, end, path, slots, timeout: see the channels' classes.
        device: of this end's tensors.

    Raises:
        TimeoutError: the other end did not come.
        RuntimeError: a communicator could not be made.
    """
    if kind == "shared_memory":
        pin = end == "send" and device.type == "cuda"
        return SharedMemoryChannel(spec, end, path, slots=slots, pin=pin, timeout=timeout)
    if kind in ("gloo", "nccl"):
        where = device if kind == "nccl" else torch.device("cpu")
        return DistributedChannel(spec, end, path, backend=kind, device=where, slots=slots, timeout=timeout)
    raise ValueError(f"{kind!r} is not a channel between processes")
