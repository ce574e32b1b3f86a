"""The loop around a role, with channels between threads."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from actors.channels.local import LocalChannel
from actors.channels.protocol import ChannelAborted, TensorSpec
from actors.pipeline.header import DROPPED, Header
from actors.pipeline.loop import Loop, LoopRole

SPEC = TensorSpec((2,), "float32")


class Double(LoopRole):
    def __init__(self) -> None:
        self.seen: list[int] = []
        self.faulty = False

    def step(self, header: Header | None, inputs: Mapping[str, Tensor]) -> tuple[Header, dict[str, Tensor]]:
        assert header is not None
        if self.faulty:
            raise RuntimeError("no")
        self.seen.append(header.index)
        return header, {"out": sum(inputs.values()) * 2}  # type: ignore[dict-item]


class Count(LoopRole):
    def __init__(self) -> None:
        self.made = 0

    def step(self, header: Header | None, inputs: Mapping[str, Tensor]) -> tuple[Header, dict[str, Tensor]]:
        assert header is None and not inputs
        self.made += 1
        return Header(self.made - 1, 0), {"out": torch.full((2,), float(self.made))}


def clock() -> object:
    times = iter(range(1, 1000))
    return lambda: float(next(times))


def test_work_and_stamps() -> None:
    source, target, done = LocalChannel(SPEC), LocalChannel(SPEC), []
    loop = Loop(Double(), 3, [("in", source)], [("out", target)], finished=done.append, clock=clock())  # type: ignore[arg-type]
    source.send(torch.tensor([1.0, 2.0]), Header(5, 1).stamped(0, 0.25, 0.5))
    loop.once()
    header, tensor = target.recv()
    assert tensor.tolist() == [2.0, 4.0]
    assert header == Header(5, 1).stamped(0, 0.25, 0.5).stamped(3, 1.0, 2.0)
    assert done == [header] and loop.counts.chunks == 1


def test_inputs_of_one_chunk_meet() -> None:
    a, b, target = LocalChannel(SPEC), LocalChannel(SPEC), LocalChannel(SPEC)
    loop = Loop(Double(), 1, [("a", a), ("b", b)], [("out", target)])
    a.send(torch.ones(2), Header(0, 0).stamped(0, 1.0, 2.0))
    b.send(torch.ones(2), Header(0, 0).stamped(5, 3.0, 4.0))
    loop.once()
    header, tensor = target.recv()
    assert tensor.tolist() == [4.0, 4.0]
    assert header.stamps[:2] == (1.0, 2.0) and header.stamps[10:12] == (3.0, 4.0)


def test_a_lost_chunk_is_an_error_not_a_shift() -> None:
    a, b = LocalChannel(SPEC), LocalChannel(SPEC)
    loop = Loop(Double(), 1, [("a", a), ("b", b)], [])
    a.send(torch.ones(2), Header(0, 0))
    b.send(torch.ones(2), Header(1, 0))
    with pytest.raises(RuntimeError, match="lost"):
        loop.once()


def test_cancelled_chunks_are_passed_on_without_work() -> None:
    role, source, target = Double(), LocalChannel(SPEC, 4), LocalChannel(SPEC, 4)
    loop = Loop(role, 1, [("in", source)], [("out", target)])
    loop.cancel(4)
    loop.cancel(2)
    for index, response_id in enumerate([4, 3, -1, 5]):
        source.send(torch.ones(2), Header(index, response_id))
    responses = []
    for _ in range(4):
        loop.once()
        responses.append(target.recv()[0].response_id)
        target.release()
    assert responses == [DROPPED, DROPPED, -1, 5]
    assert role.seen == [2, 3]
    assert (loop.counts.chunks, loop.counts.dropped) == (2, 2)


def test_a_dropped_chunk_is_dropped_at_a_join() -> None:
    role, a, b = Double(), LocalChannel(SPEC), LocalChannel(SPEC)
    loop = Loop(role, 1, [("a", a), ("b", b)], [])
    a.send(None, Header(0, 3).dropped())
    b.send(torch.ones(2), Header(0, 3))
    loop.once()
    a.send(torch.ones(2), Header(1, 3))
    b.send(None, Header(1, 3).dropped())
    loop.once()
    assert role.seen == [] and loop.counts.dropped == 2


def test_a_failed_step_sends_nothing() -> None:
    role, source, target = Double(), LocalChannel(SPEC), LocalChannel(SPEC, 1)
    loop = Loop(role, 1, [("in", source)], [("out", target)])
    role.faulty = True
    source.send(torch.ones(2), Header(0, 0))
    with pytest.raises(RuntimeError):
        loop.once()
    target.reserve()  # nothing is in its only slot
    assert loop.counts.chunks == 0


def test_a_source_decides_only_when_there_is_room() -> None:
    role, wide, narrow = Count(), LocalChannel(SPEC, 5), LocalChannel(SPEC, 1)
    loop = Loop(role, 0, [], [("out", wide), ("out", narrow)])

    def run() -> None:
        with pytest.raises(ChannelAborted):
            loop.run()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    for i in range(4):
        assert narrow.recv()[0].index == i
        threading.Event().wait(0.02)
        assert role.made == i + 1
        narrow.release()
        threading.Event().wait(0.02)
        assert role.made == i + 2
        wide.recv()
    narrow.abort()
    thread.join(5)
    assert not thread.is_alive()
