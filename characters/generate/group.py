"""Processes that hold one state together: one session's DiT, or one session's picture."""

from __future__ import annotations

from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from characters.model.plan import ParallelPlan, Shard
from characters.model.wan_vae.rows import SplitRows
from kernels.comm.breakable_group import BreakableGroup
from kernels.comm.exchange import CollectiveExchange, Exchange, LocalExchange, PeerExchange
from kernels.comm.group import abort_group, open_group
from kernels.comm.peer_memory import SymmetricMemory

T = TypeVar("T")

# A rank that dies is noticed at once and one that hangs is killed by the gang; others may be compiling a kernel.
_PATIENCE = 60.0


class Peers:
    """One process's view of such a group; all of them are made at once, and there is one a process at a time.

    Args:
        path: of a file that does not exist yet, the same for all.
        rank, size: of this process, and of the group.
        device: of this process.

    Raises:
        RuntimeError: another process did not come.
    """

    def __init__(self, path: str, rank: int, size: int, device: torch.device) -> None:
        self._rank, self._device = rank, device
        self._world = open_group(path, rank, size, device)

    def agree(self, value: T, first: int = 0, group: dist.ProcessGroup | None = None) -> T:
        """The value of rank `first`, in all processes of a group, by default of this one; tensors on the CPU."""
        values = [value]
        dist.broadcast_object_list(values, first, group=group or self._world, device=torch.device("cpu"))
        return values[0]

    def close(self) -> None:
        """Leave; the others are leaving too, or have gone."""
        abort_group(self._world, self._device)
        dist.destroy_process_group()


class ModelPeers(Peers):
    """The parts of a DiT.

    Args:
        path, device: see `Peers`.
        shard: what this process holds.
        plan: of the session.

    Attributes:
        exchanges: ways to join the sequence group by name, the best one first.
        sequence: the processes of the sequence group.
    """

    def __init__(self, path: str, shard: Shard, plan: ParallelPlan, device: torch.device) -> None:
        super().__init__(path, shard.stage * shard.ranks + shard.rank, plan.gpus, device)
        self._shard = shard
        self.sequence = self._world
        if plan.pipeline > 1 and shard.ranks > 1:
            # Every process has to take part in the making of every group.
            groups = [dist.new_group(list(range(p, p + shard.ranks))) for p in range(0, plan.gpus, shard.ranks)]
            own = groups[shard.stage]
            assert isinstance(own, dist.ProcessGroup)
            self.sequence = own
        self.exchanges: dict[str, Exchange] = {}
        if shard.ranks == 1:
            self.exchanges["local"] = LocalExchange(device)
            return
        if device.type == "cuda":
            self.exchanges["peer"] = PeerExchange(SymmetricMemory(self.sequence, device), _PATIENCE)
        self.exchanges["collective"] = CollectiveExchange(self.sequence, device)

    def agree_in_sequence(self, value: T) -> T:
        """The value of the sequence group's first process."""
        if self._shard.ranks == 1:
            return value
        return self.agree(value, self._shard.stage * self._shard.ranks, self.sequence)

    def receive(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """What the part before handed on with `send`, on this process's device."""
        tensor = torch.empty(shape, dtype=dtype)
        dist.recv(tensor.view(torch.uint8), self._rank - self._shard.ranks)
        return tensor.to(self._device)

    def send(self, tensor: Tensor) -> None:
        """Hand a tensor on to the next part, through the host's memory."""
        dist.send(tensor.cpu().contiguous().view(torch.uint8), self._rank + self._shard.ranks)

    def abort(self, reason: str) -> None:
        """From any thread: whoever waits for another process in an exchange stops waiting."""
        for exchange in self.exchanges.values():
            exchange.abort(reason)

    def close(self) -> None:
        """See `Peers.close`."""
        for exchange in self.exchanges.values():
            exchange.close()
        super().close()


class PicturePeers(Peers):
    """The bands of rows of a picture.

    Args:
        path, rank, size, device: see `Peers`; ranks count from the top.

    Attributes:
        rows: what the bands tell each other.
    """

    def __init__(self, path: str, rank: int, size: int, device: torch.device) -> None:
        super().__init__(path, rank, size, device)
        self._breakable = BreakableGroup(self._world, device)
        self.rows = SplitRows(self._breakable)

    def check(self) -> None:
        """Raise ExchangeBroken if a process has gone, or somebody has called `abort`."""
        self._breakable.check()

    def abort(self, reason: str) -> None:
        """From any thread: whoever waits for another process stops waiting."""
        self._breakable.abort(reason)

    def close(self) -> None:
        """See `Peers.close`."""
        self._breakable.close()
        super().close()
