"""Filling the last wave: what goes where. The launches themselves are tested among attention's other backends."""

from __future__ import annotations

import math

import pytest

from kernels.attention_fa3 import LAUNCH, PIECE, split_last_wave

H200 = 132


@pytest.mark.parametrize(
    ("heads", "expected"),
    [
        (20, (16, 3)),  # 384 blocks, 2.9 waves; of 288 thirds 36 beside the third wave, 252 in two rounds after it
        (30, (27, 2)),  # 648 blocks, 4.9 waves; of 144 halves 24 beside the fifth wave, 120 in one round after it
        (12, (11, 4)),  # 264 blocks, 2 waves, then 96 quarters at once
        (60, (60, 1)),  # 10.9 waves: nothing to be had
        (10, (10, 1)),  # 1.8 waves, and what could be had costs as much
        (1, (1, 1)),
    ],
)
def test_the_57b_shares(heads: int, expected: tuple[int, int]) -> None:
    assert split_last_wave(heads, 24, H200) == expected


@pytest.mark.parametrize("sms", [108, 114, 132])
@pytest.mark.parametrize("blocks", [1, 7, 24])
def test_a_split_is_quicker_by_what_it_costs(sms: int, blocks: int) -> None:
    taken = 0
    for heads in range(1, 65):
        first, splits = split_last_wave(heads, blocks, sms)
        assert (first == heads) == (splits == 1)
        if splits > 1:
            taken += 1
            assert 0 < first < heads
            pieces = (heads - first) * blocks * splits
            waves = _last(first * blocks, pieces, splits, sms)
            assert waves + LAUNCH + PIECE * pieces / sms <= math.ceil(heads * blocks / sms) + 1e-9
    assert taken or blocks == 1


def _last(blocks: int, pieces: int, splits: int, sms: int) -> float:
    """When the last SM is done, dealt out one by one to whichever SM is free first."""
    free = [0.0] * sms
    for length in [1.0] * blocks + [1 / splits] * pieces:
        soonest = min(range(sms), key=free.__getitem__)
        free[soonest] += length
    return max(free)
