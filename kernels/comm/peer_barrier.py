"""A barrier between GPUs: every rank raises a flag in every other rank's memory and waits for theirs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.dispatch import jit, tl

# A poll of flags in a GPU's own memory takes about a microsecond.
_POLLS_PER_SECOND = 1_000_000
_ABORT_EVERY = 256  # polls between looks at the host's memory, which take longer


class PeerBarrier:
    """A barrier on the devices' streams. What was written before it, to any rank, is visible after it.

    Flags are the number of the barrier, so they need no reset and a captured CUDA graph can be replayed for ever. A
    rank that gives up passes this barrier and all later ones at once: the step ends, with worthless results.

    Args:
        flags: int32 [n], zeros, of each of n <= 32 ranks; flags[r][s] is where s tells r how far it has come.
        rank: of this process.
        patience: seconds, roughly, until a rank gives up.
    """

    def __init__(self, flags: Sequence[Tensor], rank: int, patience: float) -> None:
        own = flags[rank]
        self._rank, self._size, self._own, self._flags = rank, len(flags), own, list(flags)
        self._addresses = torch.tensor([x.data_ptr() for x in flags], dtype=torch.int64, device=own.device)
        self._progress = torch.zeros(2, dtype=torch.int32, device=own.device)  # barriers passed, given up?
        # [0]: the host tells the device to give up; [1]: the device tells the host whom it missed, counted from 1.
        self._status = torch.zeros(2, dtype=torch.int32, pin_memory=own.is_cuda)
        self._polls = max(1, int(patience * _POLLS_PER_SECOND))

    def wait(self) -> None:
        """Queue the barrier on the current stream."""
        _barrier_kernel[(1,)](
            self._addresses,
            self._own,
            self._progress,
            self._status,
            self._polls,
            RANK=self._rank,
            SIZE=self._size,
            ABORT_EVERY=_ABORT_EVERY,
            num_warps=1,
        )

    @property
    def missed(self) -> int | None:
        """The rank that this one gave up waiting for, as far as the device has come; None if it did not."""
        return int(self._status[1]) - 1 if self._status[1] else None

    def abort(self) -> None:
        """From any thread: give up, now or at the next barrier that would wait."""
        self._status[0] = 1


@jit
def _barrier_kernel(
    addresses, own, progress, status, polls, RANK: tl.constexpr, SIZE: tl.constexpr, ABORT_EVERY: tl.constexpr
):
    if tl.load(progress + 1) == 0:
        number = tl.load(progress) + 1
        tl.store(progress, number)
        ranks = tl.arange(0, 32)  # a lane each
        there = ranks < SIZE
        flags = tl.load(addresses + ranks, mask=there, other=0).to(tl.pointer_type(tl.int32))
        # Release: what earlier kernels of this stream wrote to a peer is there before the flag is.
        tl.atomic_xchg(flags + RANK, number, mask=there, sem="release", scope="sys")
        count = 0
        missing = 1
        while missing > 0:
            seen = tl.atomic_add(own + ranks, 0, mask=there, sem="acquire", scope="sys")
            # The difference, because numbers wrap around after a month.
            late = there & (seen - number < 0)
            missing = tl.sum(late.to(tl.int32), 0)
            count += 1
            stop = count >= polls
            if count % ABORT_EVERY == 0:
                stop = stop | (tl.load(status, volatile=True) != 0)
            if (missing > 0) & stop:
                tl.store(progress + 1, 1)
                tl.store(status + 1, tl.min(tl.where(late, ranks, 32), 0) + 1)
                missing = 0
