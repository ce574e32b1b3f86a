"""The processes of one host that share a model, as a group of torch.distributed."""

from __future__ import annotations

import contextlib
import os
from datetime import timedelta

import torch
import torch.distributed as dist


def open_group(path: str, rank: int, size: int, device: torch.device | str, timeout: float = 60.0) -> dist.ProcessGroup:
    """Meet the other ranks; a process is in one group at a time. GPU tensors go by NCCL, CPU tensors by gloo.

    Args:
        path: of a file that does not exist yet, the same for all ranks.
        rank, size: of this process, and of the group.
        device: of this rank: "cpu", or a GPU that no other rank uses.
        timeout: seconds to wait for the other ranks, here and in every collective on the CPU.

    Raises:
        RuntimeError: the other ranks did not come in time.
    """
    device = torch.device(device)
    # A multicast object that is not torn down properly can leave a whole host's NVLink unusable.
    os.environ["NCCL_NVLS_ENABLE"] = "0"
    os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"
    # The caller deals with dead ranks; PyTorch's watchdog would end this process.
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
    os.environ.setdefault("TORCH_NCCL_ENABLE_MONITORING", "0")
    if device.type == "cuda":
        device = torch.device("cuda", device.index or 0)
        torch.cuda.set_device(device)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
        store=dist.FileStore(path, size),
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=timeout),
        device_id=device if device.type == "cuda" else None,
    )
    group = dist.group.WORLD
    assert group is not None
    return group


def abort_group(group: dist.ProcessGroup, device: torch.device) -> None:
    """End the waiting in a group's NCCL collectives, here and on the GPU; any thread may call it. gloo cannot be woken.

    NCCL returns once no captured CUDA graph holds a collective of the group any more.
    """
    if device.type == "cuda":
        with contextlib.suppress(RuntimeError):  # it was ended already
            group._get_backend(device).abort()
