"""Ulysses exchange (Jacobs et al. 2023) of a sequence group: from rows of a chunk to heads of its context, and back.

Every rank computes its own rows of a chunk, and attends with its own heads. Before attention the q, k and v of all rows
go to the ranks that own their heads. After it the outputs go back to the ranks that own their rows. The history never
travels: it stays in the ring of the rank that owns its heads.

There are three kinds of `Exchange`. Those of one group may take turns from step to step (`PeerExchange` allocates for
both):
- `LocalExchange`: one rank, nothing travels.
- `CollectiveExchange`: two all-to-alls of torch.distributed, NCCL between GPUs or gloo between CPUs.
- `PeerExchange`: `write_qkv` and `scatter_rows` write straight into the other GPUs' memory over NVLink, in the layout
  and precision that the reader takes; a flag barrier follows. NVLink multicast is not used.

All work of a step is on the device and of fixed shape, so that it can be captured in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from kernels.comm.breakable_group import BreakableGroup, ExchangeBroken
from kernels.comm.death_watch import DeathWatch
from kernels.comm.peer_barrier import PeerBarrier
from kernels.comm.peer_memory import PeerMemory
from kernels.fp8 import FP8
from kernels.scatter_rows import scatter_rows
from kernels.write_qkv import ProjectedQkv, QkvScales, QkvTarget, write_qkv


class Exchange(Protocol):
    """Joins the ranks of one sequence group. All ranks call the same methods in the same order.

    Attributes:
        rank, size: of this process in its group.
    """

    rank: int
    size: int

    def share(self, shape: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
        """Zeroed memory for `targets` below: one tensor for each rank that this one writes to, or its own alone.

        Returns:
            `size` tensors in the order of ranks, or one.
        """

    def write(
        self,
        x: ProjectedQkv,
        *,
        targets: Sequence[QkvTarget],
        cursor: Tensor,
        tokens: int,
        scales: QkvScales | None = None,
    ) -> QkvTarget:
        """Deal this rank's rows of a chunk to all ranks, and receive all rows for its own heads.

        Args:
            x: rank r has rows [r * rows, (r + 1) * rows) of the chunk.
            targets: made of what `share` returned.
            cursor, tokens, scales: see `write_qkv`.

        Returns:
            This rank's own target, in which the chunk is now complete.

        Raises:
            ExchangeBroken: on a CPU. On a GPU, `check` raises it.
        """

    def collect(self, o: Tensor, scale: Tensor | None, targets: Sequence[Tensor]) -> Tensor:
        """Bring the attention output of all heads back to the rows' owners.

        Args:
            o: [size * rows, dim / size], of this rank's heads.
            scale: see `scatter_rows`.
            targets: [rows, dim] each, from `share`.

        Returns:
            This rank's own target.

        Raises:
            ExchangeBroken: on a CPU. On a GPU, `check` raises it.
        """

    def settle(self) -> None:
        """Finish this rank's work on its shared memory, on the device, before another rank writes there again.

        `write` and `collect` do that themselves. A rank that writes into its own ring between them calls this.
        """

    def check(self) -> None:
        """Raise ExchangeBroken if a step that has ended on the device did not get what it waited for."""

    def abort(self, reason: str = "the exchange was aborted") -> None:
        """End all waiting in this process, on its GPU too; any thread may call it. `check` raises from now on."""

    def close(self) -> None:
        """Stop watching the other ranks; the buffers live as long as the exchange."""


class LocalExchange:
    """A group of one.

    Args:
        device: of the buffers.
    """

    rank, size = 0, 1

    def __init__(self, device: torch.device | str) -> None:
        self._device = device

    def share(self, shape: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
        """See `Exchange.share`."""
        return [torch.zeros(shape, dtype=dtype, device=self._device)]

    def write(
        self,
        x: ProjectedQkv,
        *,
        targets: Sequence[QkvTarget],
        cursor: Tensor,
        tokens: int,
        scales: QkvScales | None = None,
    ) -> QkvTarget:
        """See `Exchange.write`."""
        write_qkv(x, targets=targets, cursor=cursor, first_row=0, tokens=tokens, scales=scales)
        return targets[0]

    def collect(self, o: Tensor, scale: Tensor | None, targets: Sequence[Tensor]) -> Tensor:
        """See `Exchange.collect`."""
        scatter_rows(o, scale, targets, 0)
        return targets[0]

    def settle(self) -> None:
        """See `Exchange.settle`: nobody else writes."""

    def check(self) -> None:
        """See `Exchange.check`: there is nobody to wait for."""

    def abort(self, reason: str = "") -> None:
        """See `Exchange.abort`."""

    def close(self) -> None:
        """See `Exchange.close`."""


class CollectiveExchange:
    """All-to-alls of torch.distributed. FP8 travels as bytes.

    Args:
        group: of the ranks; NCCL for GPUs, gloo for CPUs.
        device: of this rank's tensors.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device | str) -> None:
        self._group, self._device = BreakableGroup(group, device), torch.device(device)
        self.rank, self.size = self._group.rank, self._group.size
        self._staging: dict[tuple[str, tuple[int, ...], torch.dtype], Tensor] = {}
        self._start = torch.zeros((), dtype=torch.int64, device=device)

    def share(self, shape: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
        """See `Exchange.share`: this rank's own."""
        return [torch.zeros(shape, dtype=dtype, device=self._device)]

    def write(
        self,
        x: ProjectedQkv,
        *,
        targets: Sequence[QkvTarget],
        cursor: Tensor,
        tokens: int,
        scales: QkvScales | None = None,
    ) -> QkvTarget:
        """See `Exchange.write`."""
        own = targets[self.rank % len(targets)]
        rows, (heads, head_dim) = len(x.qkv), own.q.shape[1:]
        sent, received = self._buffers("write", (self.size, 3, rows, heads, head_dim), own.q.dtype)
        parts = [QkvTarget(*part) for part in sent]
        write_qkv(x, targets=parts, cursor=self._start, first_row=0, tokens=rows, scales=scales)
        self._all_to_all(received, sent)
        # [source, 3, rows, ...] -> three of [all rows, ...]; bytes, because PyTorch copies FP8 by few routes only.
        q, k, v = _bytes(received).transpose(0, 1).flatten(1, 2)
        _bytes(own.q).copy_(q)
        ring = cursor + torch.arange(tokens, device=x.qkv.device)
        values = _bytes(own.values)
        _bytes(own.keys).index_copy_(0, ring, k[:tokens])
        if own.values_transposed:
            values = values.permute(2, 0, 1)
        values.index_copy_(0, ring, v[:tokens])
        return own

    def collect(self, o: Tensor, scale: Tensor | None, targets: Sequence[Tensor]) -> Tensor:
        """See `Exchange.collect`."""
        own = targets[self.rank % len(targets)]
        rows, width = len(own), o.shape[1]
        sent, received = self._buffers("collect", (self.size, rows, width), own.dtype)
        scatter_rows(o, scale, list(sent), 0)
        self._all_to_all(received, sent)
        _bytes(own).unflatten(1, (self.size, -1)).copy_(_bytes(received).transpose(0, 1))
        return own

    def settle(self) -> None:
        """See `Exchange.settle`: nobody else writes."""

    def check(self) -> None:
        """See `Exchange.check`."""
        self._group.check()

    def abort(self, reason: str = "the exchange was aborted") -> None:
        """See `Exchange.abort`."""
        self._group.abort(reason)

    def close(self) -> None:
        """See `Exchange.close`."""
        self._group.close()

    def _buffers(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """What is sent and received, [size, ...] each, in the same memory at every call, for a captured graph."""
        for end in ("sent", "received"):
            if (f"{name} {end}", shape, dtype) not in self._staging:
                self._staging[f"{name} {end}", shape, dtype] = torch.zeros(shape, dtype=dtype, device=self._device)
        return self._staging[f"{name} sent", shape, dtype], self._staging[f"{name} received", shape, dtype]

    def _all_to_all(self, received: Tensor, sent: Tensor) -> None:
        self.check()
        sent, received = sent.view(torch.uint8), received.view(torch.uint8)
        self._group.wait(dist.all_to_all_single(received, sent, group=self._group.group, async_op=True))


class PeerExchange:
    """Writes into the other ranks' memory and waits at a barrier, twice a layer.

    One buffer of each kind is enough. A rank writes a peer's q only after the barrier that follows the peer's attention
    in the layer before. It writes a peer's rows only after the barrier that follows the peer's use of the rows before,
    and a peer's ring only a whole step after the peer last read the chunk that it replaces.

    Args:
        memory: of the ranks.
        patience: seconds, roughly, that a barrier waits for the others. A rank that dies is noticed at once; this is
            for one that hangs.

    Attributes:
        barrier: of the group, for a caller that writes a chunk piece by piece.
    """

    def __init__(self, memory: PeerMemory, patience: float = 10.0) -> None:
        self.rank, self.size = memory.rank, memory.size
        self._memory = memory
        self.barrier = PeerBarrier(memory.share((memory.size,), torch.int32), memory.rank, patience)
        self._reason = ""
        self._watch = DeathWatch(memory.pids, lambda rank: self.abort(f"rank {rank} has died"))

    def share(self, shape: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
        """See `Exchange.share`: of every rank."""
        return self._memory.share(shape, dtype)

    def write(
        self,
        x: ProjectedQkv,
        *,
        targets: Sequence[QkvTarget],
        cursor: Tensor,
        tokens: int,
        scales: QkvScales | None = None,
    ) -> QkvTarget:
        """See `Exchange.write`."""
        first_row = self.rank * len(x.qkv)
        write_qkv(x, targets=targets, cursor=cursor, first_row=first_row, tokens=tokens, scales=scales)
        self.barrier.wait()
        return targets[self.rank]

    def collect(self, o: Tensor, scale: Tensor | None, targets: Sequence[Tensor]) -> Tensor:
        """See `Exchange.collect`."""
        scatter_rows(o, scale, targets, self.rank * o.shape[1])
        self.barrier.wait()
        return targets[self.rank]

    def settle(self) -> None:
        """See `Exchange.settle`."""
        self.barrier.wait()

    def check(self) -> None:
        """See `Exchange.check`."""
        missed = self.barrier.missed
        if self._reason or missed is not None:
            raise ExchangeBroken(self._reason or f"rank {missed} did not come to the barrier")

    def abort(self, reason: str = "the exchange was aborted") -> None:
        """See `Exchange.abort`."""
        self._reason = self._reason or reason
        self.barrier.abort()

    def close(self) -> None:
        """See `Exchange.close`."""
        self._watch.close()


def _bytes(x: Tensor) -> Tensor:
    """FP8 as uint8; other dtypes as they are."""
    return x.view(torch.uint8) if x.dtype == FP8 else x
