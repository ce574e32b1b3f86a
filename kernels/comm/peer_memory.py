"""Memory of GPUs of one host that every rank of a group can write to."""

from __future__ import annotations

import math
import os
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from kernels.comm.death_watch import pids_of


class PeerMemory(Protocol):
    """Allocates the same tensor on every rank.

    Attributes:
        rank, size: of this process in its group.
        pids: process ids of the other ranks that have a process of their own.
    """

    rank: int
    size: int
    pids: dict[int, int]

    def share(self, shape: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
        """Zeroed tensors, one of each rank, all of them addresses that this process may write to.

        All ranks call this in the same order, and wait for each other in it.
        """


class SymmetricMemory:
    """Processes that have one GPU each, through PyTorch's symmetric memory.

    Args:
        group: of the ranks, known to torch.distributed.
        device: this rank's GPU.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device | str) -> None:
        import torch.distributed._symmetric_memory as symmetric_memory  # loads what CPUs don't have

        # A multicast object that is not torn down properly can leave a host's NVLink unusable. And a rank sees its GPU
        # as number 0 if it was given that one alone, which PyTorch would take for several ranks on one GPU.
        os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"
        os.environ["TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"] = "1"
        self.rank, self.size = group.rank(), group.size()
        self._allocator, self._group, self._device = symmetric_memory, group, torch.device(device)
        self._handles: list[object] = []  # the mappings live as long as their handles
        self.pids = pids_of(group)

    def share(self, shape: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
        """See `PeerMemory.share`."""
        count = math.prod(shape) * dtype.itemsize
        own = self._allocator.empty(count, dtype=torch.uint8, device=self._device).zero_()
        torch.cuda.synchronize(self._device)
        handle = self._allocator.rendezvous(own, self._group)
        self._handles.append(handle)
        dist.barrier(self._group)  # nobody writes before everybody has zeroed
        parts = [
            own if rank == self.rank else handle.get_buffer(rank, (count,), torch.uint8, 0) for rank in range(self.size)
        ]
        return [part.view(dtype).view(shape) for part in parts]


class SimulatedMemory:
    """Ranks of one process on one device, for tests and for timing the writes where there is one GPU.

    Args:
        size: ranks.
        device: of all of them.
    """

    def __init__(self, size: int, device: torch.device | str) -> None:
        self._device = device
        self._shared: list[list[Tensor]] = []
        self.ranks = [_SimulatedRank(self, rank, size) for rank in range(size)]

    def share(self, call: int, size: int, shape: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
        """What the `call`-th call of every rank returns."""
        if call == len(self._shared):
            self._shared.append([torch.zeros(shape, dtype=dtype, device=self._device) for _ in range(size)])
        return self._shared[call]


class _SimulatedRank:
    """One rank's `PeerMemory`."""

    def __init__(self, memory: SimulatedMemory, rank: int, size: int) -> None:
        self.rank, self.size, self.pids = rank, size, dict[int, int]()
        self._memory, self._calls = memory, 0

    def share(self, shape: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
        """See `PeerMemory.share`."""
        self._calls += 1
        return self._memory.share(self._calls - 1, self.size, shape, dtype)
