"""The barrier between GPUs, one rank at a time on one device."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.comm.peer_barrier import PeerBarrier

SIZE = 3


def ranks_of(device: str, patience: float) -> tuple[list[Tensor], list[PeerBarrier]]:
    flags = [torch.zeros(SIZE, dtype=torch.int32, device=device) for _ in range(SIZE)]
    return flags, [PeerBarrier(flags, rank, patience) for rank in range(SIZE)]


def finish(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def test_the_last_rank_passes_and_all_flags_are_up(device: str) -> None:
    flags, ranks = ranks_of(device, 1e-4)
    for own in flags:
        own[:2] = 1  # ranks 0 and 1 have come
    ranks[2].wait()
    finish(device)
    assert ranks[2].missed is None
    assert [own.tolist() for own in flags] == [[1, 1, 1]] * SIZE


def test_a_rank_that_is_ahead_does_not_disturb(device: str) -> None:
    flags, ranks = ranks_of(device, 1e-4)
    flags[0][1:] = torch.tensor([1, 2])  # rank 2 waits at the second barrier already
    ranks[0].wait()
    finish(device)
    assert ranks[0].missed is None


def test_who_does_not_come_is_named_and_later_barriers_do_not_wait(device: str) -> None:
    flags, ranks = ranks_of(device, 1e-5)
    flags[0][2] = 1
    ranks[0].wait()
    finish(device)
    assert ranks[0].missed == 1
    for _ in range(3):
        ranks[0].wait()
    finish(device)
    assert [own[0].item() for own in flags] == [1, 1, 1], "a rank that gave up must not let the others go on"


def test_abort_ends_the_wait(device: str) -> None:
    _, ranks = ranks_of(device, 3600.0)
    ranks[1].abort()
    ranks[1].wait()
    finish(device)
    assert ranks[1].missed == 0


@pytest.mark.parametrize("start", [2**31 - 1, -1])
def test_numbers_wrap_around(device: str, start: int) -> None:
    """After 2 ** 31 barriers, a month of streaming, numbers go on from the negative end."""
    flags, ranks = ranks_of(device, 1e-5)
    for own in flags:
        own.fill_(start)
    ranks[0]._progress[0] = start
    for own in flags:
        own[1:] = (start + 1 + 2**31) % 2**32 - 2**31
    ranks[0].wait()
    finish(device)
    assert ranks[0].missed is None
    ranks[0].wait()
    finish(device)
    assert ranks[0].missed == 1, "the next one has to be waited for"
