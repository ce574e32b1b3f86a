"""Collectives that stop waiting when a rank dies or when somebody calls `abort`."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist

from kernels.comm.death_watch import DeathWatch, pids_of
from kernels.comm.group import abort_group

_POLL_PERIOD = timedelta(seconds=0.1)


class ExchangeBroken(Exception):
    """A rank of the group has ended or did not come in time; data exchanged since is worthless."""


class BreakableGroup:
    """A process's view of a group of torch.distributed; all ranks make theirs at once.

    Args:
        group: of the ranks, on one host; NCCL for GPUs, gloo for CPUs.
        device: of this rank's tensors.

    Attributes:
        rank, size: of this process in it.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device | str) -> None:
        self.group, self.rank, self.size = group, group.rank(), group.size()
        self._device = torch.device(device)
        self._broken = ""
        self._watch = DeathWatch(pids_of(group), lambda rank: self.abort(f"rank {rank} has died"))

    def wait(self, work: dist.Work) -> None:
        """Wait for a collective that was started with `async_op`: on a CPU the host waits, on a GPU the current stream.

        Raises:
            ExchangeBroken: on a CPU. On a GPU, `check` raises it.
        """
        if self._device.type == "cuda":
            work.wait()
            return
        while True:  # gloo cannot be woken, so the host polls
            try:
                work.wait(_POLL_PERIOD)
                return
            except RuntimeError as e:
                self.check()
                if not work.is_completed():
                    continue
                if work.is_success():  # since the wait
                    return
                self._broken = f"a rank of the group has gone: {e}"
                raise ExchangeBroken(self._broken) from e

    def check(self) -> None:
        """Raise ExchangeBroken if a rank has ended or `abort` was called."""
        if self._broken:
            raise ExchangeBroken(self._broken)

    def abort(self, reason: str) -> None:
        """End all waiting in this process, on its GPU too; any thread may call it. `check` raises from now on."""
        self._broken = self._broken or reason
        abort_group(self.group, self._device)

    def close(self) -> None:
        """Stop watching the other ranks."""
        self._watch.close()
