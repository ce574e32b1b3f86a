"""The clock of sound."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from actors.pipeline.header import IDLE
from actors.roles.aligner import CAPACITY, AudioAligner, AudioChunk
from characters.chunk import SAMPLES_PER_CHUNK, Clock
from characters.generate.hearing import SILENCE, Listener, MelHearing


def make() -> AudioAligner:
    return AudioAligner(Clock(), MelHearing())


def ramp(count: int, start: int = 1) -> np.ndarray:
    """float32 [count], every sample different and none zero."""
    return (np.arange(start, start + count) / 1e6).astype(np.float32)


def speech(count: int, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(count) * 0.1).astype(np.float32)


def sound(chunks: list[AudioChunk]) -> np.ndarray:
    return np.concatenate([chunk.pcm for chunk in chunks])


def test_silence_when_nobody_speaks() -> None:
    aligner = make()
    for i in range(5):
        chunk = aligner.next()
        assert (chunk.index, chunk.response_id, chunk.pushed) == (i, IDLE, ())
        assert chunk.pcm.shape == (SAMPLES_PER_CHUNK,) and chunk.pcm.dtype == np.float32 and not chunk.pcm.any()
        assert chunk.heard.shape == (48, 80) and chunk.heard.dtype == np.float32
        assert np.allclose(chunk.heard, SILENCE)


@pytest.mark.parametrize("sizes", [[20_000], [1] * 50 + [19_950], [480] * 41, [4_000] * 5])
def test_pushed_sound_comes_out_whole_whatever_the_pushes(sizes: list[int]) -> None:
    aligner, given = make(), ramp(sum(sizes))
    parts = np.split(given, np.cumsum(sizes)[:-1])
    for part in parts:
        assert aligner.push(0, part) == len(part)
    chunks = [aligner.next() for _ in range(7)]
    assert np.array_equal(sound(chunks)[: len(given)], given)
    assert not sound(chunks)[len(given) :].any()
    assert [c.response_id for c in chunks[:5]] == [0] * 5 and chunks[-1].response_id == IDLE
    assert sum(stop - start for c in chunks for start, stop in c.pushed) == len(given)


def test_windows_equal_those_of_the_single_process_stream() -> None:
    aligner, reference, given = make(), Listener(MelHearing()), speech(10 * SAMPLES_PER_CHUNK)
    aligner.push(3, given)
    reference.push(given)
    for i in range(9):
        window = reference.pop()
        chunk = aligner.next()
        assert window is not None
        assert np.array_equal(chunk.pcm, given[i * SAMPLES_PER_CHUNK : (i + 1) * SAMPLES_PER_CHUNK])
        assert np.abs(chunk.heard - window).max() < 2e-4


def test_sound_waits_for_the_look_ahead() -> None:
    """What the model was told of the future is what comes: late sound starts after it."""
    aligner = make()
    aligner.next()  # has told the model that the next chunk starts with 83 ms of silence
    aligner.push(0, ramp(10_000))
    chunk = aligner.next()
    ahead = MelHearing.ahead
    assert not chunk.pcm[:ahead].any()
    assert np.array_equal(chunk.pcm[ahead:], ramp(10_000)[: SAMPLES_PER_CHUNK - ahead])
    assert chunk.pushed == ((ahead, SAMPLES_PER_CHUNK),)


def test_a_chunk_holds_one_response() -> None:
    aligner = make()
    aligner.push(0, ramp(5_000))
    aligner.push(1, ramp(5_000, 100_000))
    chunks = [aligner.next() for _ in range(4)]
    assert [c.response_id for c in chunks] == [0, 0, 1, 1]
    assert np.array_equal(sound(chunks[:2])[:5_000], ramp(5_000)) and not chunks[1].pcm[1_000:].any()
    assert np.array_equal(sound(chunks[2:])[:5_000], ramp(5_000, 100_000))


def test_barge_in_is_silent_with_the_next_chunk() -> None:
    aligner = make()
    aligner.push(4, speech(40_000))
    aligner.next()
    aligner.next()
    aligner.cancel(4)
    chunk = aligner.next()
    assert chunk.response_id == IDLE and not chunk.pcm.any()
    assert aligner.queued == 0
    # What was told of the cancelled sound as the future is taken back: the model hears the silence that is played.
    assert np.allclose(chunk.heard[24 + 4 :], SILENCE)
    assert aligner.push(4, speech(100)) == 0 and aligner.push(3, speech(100)) == 0
    aligner.push(5, ramp(8_000))
    assert [aligner.next().response_id for _ in range(2)] == [5, 5]


def test_cancelling_keeps_newer_responses() -> None:
    aligner = make()
    aligner.push(0, ramp(4_000))
    aligner.push(1, ramp(8_000, 50_000))
    aligner.cancel(0)
    chunk = aligner.next()
    assert chunk.response_id == 1 and np.array_equal(chunk.pcm, ramp(8_000, 50_000)[:4_000])
    aligner.cancel(-1)
    assert aligner.next().response_id == 1


def test_account_of_what_was_heard() -> None:
    aligner = make()
    aligner.push(0, ramp(9_000))
    chunks = [aligner.next() for _ in range(4)]
    assert (aligner.account(0).pushed, aligner.account(0).played) == (9_000, 0)
    assert aligner.played(0, 4_000) == (0, 4_000)
    assert aligner.played(1, 1_500) == (0, 5_500), "silenced in the middle"
    assert aligner.account(0).played == 5_500
    assert aligner.played(2, 4_000) == (0, 6_500)
    assert aligner.played(3, 4_000) is None
    assert chunks[3].response_id == IDLE
    assert aligner.account(9).pushed == 0


def test_what_was_lost_on_its_way_is_issued_again() -> None:
    aligner = make()
    aligner.push(0, speech(20_000))
    first = [aligner.next() for _ in range(3)]
    aligner.played(0, 4_000)
    aligner.rewind()
    again = [aligner.next() for _ in range(3)]
    assert [c.index for c in again] == [1, 2, 3]
    assert again[0] is first[1] and again[1] is first[2]
    aligner.rewind()
    aligner.cancel(0)
    fresh = aligner.next()
    assert fresh.index == 4 and fresh.response_id == IDLE


def test_bounded() -> None:
    aligner = make()
    assert aligner.push(0, np.ones(CAPACITY + 5_000, np.float32)) == CAPACITY
    assert aligner.push(0, np.ones(1, np.float32)) == 0
    aligner.next()
    assert aligner.push(0, np.ones(100_000, np.float32)) == SAMPLES_PER_CHUNK + MelHearing.ahead
    aligner.next()
    assert aligner.push(0, np.ones(100_000, np.float32)) == SAMPLES_PER_CHUNK
    for response_id in range(1, 500):
        aligner.cancel(response_id - 1)
        aligner.push(response_id, np.ones(10, np.float32))
        aligner.played(aligner.next().index, 4_000)
    assert len(aligner._accounts) <= 64
    assert len(aligner._unplayed) <= 1


@pytest.mark.parametrize("pcm", [np.zeros((2, 2)), np.array([np.nan]), np.array([np.inf], np.float32)])
def test_bad_sound_is_refused(pcm: np.ndarray) -> None:
    aligner = make()
    with pytest.raises(ValueError):
        aligner.push(0, pcm)
    with pytest.raises(ValueError):
        aligner.push(-1, np.zeros(3, np.float32))
    assert aligner.queued == 0


def test_the_callers_buffer_may_be_reused() -> None:
    aligner, buffer = make(), ramp(4_000)
    aligner.push(0, buffer)
    buffer[:] = 9
    assert np.array_equal(aligner.next().pcm, ramp(4_000))


def test_reset_and_restore() -> None:
    aligner = make()
    aligner.push(2, speech(9_000))
    aligner.next()
    aligner.cancel(1)
    state = aligner.snapshot()
    aligner.reset()
    chunk = aligner.next()
    assert (chunk.index, chunk.response_id) == (0, IDLE) and np.allclose(chunk.heard, SILENCE)
    other = make()
    other.restore(state)
    assert other.next().index == 1
    assert other.push(1, ramp(3)) == 0


def test_many_threads() -> None:
    aligner, chunks = make(), []

    def push() -> None:
        for i in range(200):
            aligner.push(0, ramp(100, 1 + 100 * i))

    threads = [threading.Thread(target=push), threading.Thread(target=lambda: [aligner.cancel(-1)] * 100)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        chunks.append(aligner.next())
        aligner.played(chunks[-1].index, 4_000)
    for thread in threads:
        thread.join()
    chunks.extend(aligner.next() for _ in range(6))
    heard = sound(chunks)
    assert np.array_equal(heard[heard != 0], ramp(20_000))
