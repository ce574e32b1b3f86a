"""Notices at once when a process of the same host ends, for whatever reason."""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Callable, Mapping

import torch.distributed as dist


class DeathWatch:
    """A thread that sleeps until one of some processes ends.

    On systems without process descriptors (macOS) it watches nothing.

    Args:
        processes: process ids by rank.
        on_death: called from the thread with the rank of each process that ends.
    """

    def __init__(self, processes: Mapping[int, int], on_death: Callable[[int], None]) -> None:
        self._ranks: dict[int, int] = {}  # descriptor -> rank
        self._on_death = on_death
        self._dead: list[int] = []
        if hasattr(os, "pidfd_open"):
            for rank, pid in processes.items():
                try:
                    self._ranks[os.pidfd_open(pid)] = rank
                except ProcessLookupError:  # it has ended already
                    self._dead.append(rank)
        self._wake, self._closing = os.pipe()
        self._thread = threading.Thread(target=self._run, name="death watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop watching. Not to be called from `on_death`."""
        if self._thread.is_alive():
            os.write(self._closing, b"\0")
            self._thread.join()
            for descriptor in (self._wake, self._closing):
                os.close(descriptor)

    def _run(self) -> None:
        for rank in self._dead:
            self._on_death(rank)
        poll = select.poll()
        for descriptor in (self._wake, *self._ranks):
            poll.register(descriptor, select.POLLIN)
        try:
            while True:
                ready = [descriptor for descriptor, _ in poll.poll()]
                if self._wake in ready:
                    return
                for descriptor in ready:
                    poll.unregister(descriptor)
                    self._on_death(self._ranks[descriptor])
        finally:
            for descriptor in self._ranks:
                with contextlib.suppress(OSError):
                    os.close(descriptor)


def pids_of(group: dist.ProcessGroup) -> dict[int, int]:
    """Process ids of the other ranks of a group on this host, by rank. All ranks call this together."""
    every: list[int] = [0] * group.size()
    dist.all_gather_object(every, os.getpid(), group=group)
    return {rank: pid for rank, pid in enumerate(every) if rank != group.rank()}
