"""The processes that hold one session's DiT, and what passes between them besides chunks."""

from __future__ import annotations

from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from characters.model.plan import ParallelPlan, Shard
from kernels.comm.exchange import CollectiveExchange, Exchange, LocalExchange, PeerExchange
from kernels.comm.group import abort_group, open_group
from kernels.comm.peer_memory import SymmetricMemory

T = TypeVar("T")

# A rank that dies is noticed at once and one that hangs is killed by the gang; others may be compiling a kernel.
_PATIENCE = 60.0


class ModelGroup:
    """One process's view; all of them are made at once, and there is one a process at a time.

    Args:
        path: of a file that does not exist yet, the same for all.
        shard: what this process holds.
        plan: of the session.
        device: of this process.

    Attributes:
        exchanges: ways to join the sequence group by name, the best one first.

    Raises:
        RuntimeError: another process did not come.
    """

    def __init__(self, path: str, shard: Shard, plan: ParallelPlan, device: torch.device) -> None:
        self._shard, self._device = shard, device
        self._rank = shard.stage * shard.ranks + shard.rank
        self._world = open_group(path, self._rank, plan.gpus, device)
        self._first = shard.stage * shard.ranks  # rank of the sequence group's first process
        self._sequence = self._world
        if plan.pipeline > 1 and shard.ranks > 1:
            # Every process has to take part in the making of every group.
            groups = [dist.new_group(list(range(p, p + shard.ranks))) for p in range(0, plan.gpus, shard.ranks)]
            self._sequence = groups[shard.stage]
        self.exchanges: dict[str, Exchange] = {}
        if shard.ranks == 1:
            self.exchanges["local"] = LocalExchange(device)
            return
        if device.type == "cuda":
            self.exchanges["peer"] = PeerExchange(SymmetricMemory(self._sequence, device), _PATIENCE)
        self.exchanges["collective"] = CollectiveExchange(self._sequence, device)

    def receive(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """What the part before handed on with `send`, on this process's device."""
        tensor = torch.empty(shape, dtype=dtype)
        dist.recv(tensor.view(torch.uint8), self._rank - self._shard.ranks)
        return tensor.to(self._device)

    def send(self, tensor: Tensor) -> None:
        """Hand a tensor on to the next part, through the host's memory."""
        dist.send(tensor.cpu().contiguous().view(torch.uint8), self._rank + self._shard.ranks)

    def agree(self, value: T) -> T:
        """The value of the sequence group's first process."""
        if self._shard.ranks == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, self._first, group=self._sequence, device=torch.device("cpu"))
        return values[0]

    def abort(self, reason: str) -> None:
        """From any thread: whoever waits for another process in an exchange stops waiting."""
        for exchange in self.exchanges.values():
            exchange.abort(reason)

    def close(self) -> None:
        """Leave; the others are leaving too, or have gone."""
        for exchange in self.exchanges.values():
            exchange.close()
        abort_group(self._world, self._device)
        dist.destroy_process_group()
