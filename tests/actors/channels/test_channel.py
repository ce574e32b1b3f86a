"""The same tests for every channel that joins two processes, and for the one that joins two threads."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from actors.channels.local import LocalChannel
from actors.channels.opening import open_channel
from actors.channels.protocol import Channel, ChannelAborted, TensorSpec
from actors.pipeline.header import HEADER_BYTES, IDLE, Header

CPU = torch.device("cpu")
SPEC = TensorSpec((3, 5), "bfloat16")
KINDS = ("shared_memory", "gloo")

Pair = Callable[..., tuple[Channel, Channel]]


@pytest.fixture(params=(*KINDS, "local"))
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    """Opens both ends of a channel in this process: (sender, receiver)."""
    opened: list[Channel] = []

    def open_pair(spec: TensorSpec = SPEC, slots: int = 2) -> tuple[Channel, Channel]:
        if request.param == "local":
            channel = LocalChannel(spec, slots)
            return channel, channel
        path, receivers = str(tmp_path / f"c{len(opened)}"), []
        thread = threading.Thread(
            target=lambda: receivers.append(open_channel(request.param, spec, "recv", path, slots=slots, device=CPU))
        )
        thread.start()
        sender = open_channel(request.param, spec, "send", path, slots=slots, device=CPU)
        thread.join()
        opened.extend((sender, receivers[0]))
        return sender, receivers[0]

    yield open_pair
    for channel in opened:
        channel.close()


def in_thread(function: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """Run in a thread; the list receives the result or the exception, and the time."""
    results: list[object] = []

    def target() -> None:
        try:
            results.append(function())
        except BaseException as e:
            results.append(e)
        results.append(time.monotonic())

    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    return thread, results


def test_header_survives_packing() -> None:
    header = Header(7, 3).stamped(0, 1.5, 2.5).stamped(11, 8.0, 9.0)
    assert len(header.pack()) == HEADER_BYTES
    assert Header.unpack(header.pack()) == header
    assert header.joined(Header(7, 3).stamped(4, 5.0, 6.0)).stamps[8:10] == (5.0, 6.0)


def test_silence_is_never_cancelled() -> None:
    assert not Header(0, IDLE).cancelled_by(5)
    assert Header(0, 5).cancelled_by(5)
    assert Header(0, 0).cancelled_by(5)
    assert not Header(0, 6).cancelled_by(5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "uint8"])
def test_tensors_arrive_in_order_and_unharmed(pair: Pair, dtype: str) -> None:
    spec = TensorSpec((7, 9), dtype)
    sender, receiver = pair(spec)
    sent = [torch.randint(0, 255, spec.shape).to(spec.torch_dtype) for _ in range(9)]

    def feed() -> None:
        for i, tensor in enumerate(sent):
            sender.send(tensor, Header(i, 2).stamped(1, i, i + 1))

    thread, _ = in_thread(feed)
    for i, tensor in enumerate(sent):
        header, view = receiver.recv()
        assert header == Header(i, 2).stamped(1, i, i + 1)
        assert torch.equal(view, tensor)
    thread.join(5)


def test_a_view_is_safe_until_released(pair: Pair) -> None:
    sender, receiver = pair()
    thread, _ = in_thread(lambda: [sender.send(torch.full(SPEC.shape, i).bfloat16(), Header(i, 0)) for i in range(4)])
    _, view = receiver.recv()
    time.sleep(0.05)
    assert (view == 0).all(), "the sender has run into the slot that the receiver holds"
    for i in range(1, 4):
        header, view = receiver.recv()
        assert header.index == i and (view == i).all()
    thread.join(5)


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_a_slow_consumer_slows_the_producer(pair: Pair, slots: int) -> None:
    sender, receiver = pair(slots=slots)
    sent: list[int] = []

    def feed() -> None:
        for i in range(10):
            sender.send(torch.zeros(SPEC.shape).bfloat16(), Header(i, 0))
            sent.append(i)

    thread, _ = in_thread(feed)
    time.sleep(0.2)
    assert len(sent) == slots
    for i in range(10):
        assert receiver.recv()[0].index == i
        time.sleep(0.01)
        assert len(sent) <= i + slots
    thread.join(5)
    assert len(sent) == 10


def test_reserve_waits_for_a_free_slot(pair: Pair) -> None:
    sender, receiver = pair(slots=1)
    sender.reserve()
    sender.send(torch.zeros(SPEC.shape).bfloat16(), Header(0, 0))
    thread, results = in_thread(sender.reserve)
    time.sleep(0.05)
    assert not results
    receiver.recv()
    receiver.release()
    receiver.release()
    thread.join(5)
    assert results[0] is None
    sender.send(torch.zeros(SPEC.shape).bfloat16(), Header(1, 0))
    assert receiver.recv()[0].index == 1


@pytest.mark.parametrize("wrong", [torch.zeros(3, 5), torch.zeros(5, 3).bfloat16()])
def test_a_wrong_tensor_is_refused_and_changes_nothing(pair: Pair, wrong: torch.Tensor) -> None:
    sender, receiver = pair()
    with pytest.raises(ValueError, match="expected bfloat16"):
        sender.send(wrong, Header(0, 0))
    sender.send(torch.ones(SPEC.shape).bfloat16(), Header(1, 0))
    assert receiver.recv()[0].index == 1


def assert_abort_wakes(waiting: Callable[[], object], aborting: Channel) -> None:
    """`waiting` blocks until the abort, and ends within 100 ms of it."""
    thread, results = in_thread(waiting)
    time.sleep(0.05)
    assert not results
    start = time.monotonic()
    aborting.abort()
    thread.join(5)
    assert isinstance(results[0], ChannelAborted)
    assert results[1] - start < 0.1  # type: ignore[operator]


@pytest.mark.parametrize("aborting", ["sender", "receiver"])
def test_abort_wakes_a_waiting_receiver(pair: Pair, aborting: str) -> None:
    sender, receiver = pair()
    assert_abort_wakes(receiver.recv, sender if aborting == "sender" else receiver)
    with pytest.raises(ChannelAborted):
        receiver.recv()


@pytest.mark.parametrize("aborting", ["sender", "receiver"])
def test_abort_wakes_a_waiting_sender(pair: Pair, aborting: str) -> None:
    sender, receiver = pair()

    def feed() -> None:
        for i in range(3):
            sender.send(torch.zeros(SPEC.shape).bfloat16(), Header(i, 0))

    assert_abort_wakes(feed, sender if aborting == "sender" else receiver)
    with pytest.raises(ChannelAborted):
        sender.reserve()


def _send_forever(kind: str, path: str) -> None:
    torch.set_num_threads(1)
    channel = open_channel(kind, SPEC, "send", path, slots=2, device=CPU)  # type: ignore[arg-type]
    index = 0
    while True:
        channel.send(torch.full(SPEC.shape, index % 100).bfloat16(), Header(index, 0))
        index += 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_sender_ends_the_receiver(kind: str, tmp_path: Path) -> None:
    path = str(tmp_path / "c")
    process = multiprocessing.get_context("spawn").Process(target=_send_forever, args=(kind, path), daemon=True)
    process.start()
    receiver = open_channel(kind, SPEC, "recv", path, slots=2, device=CPU)  # type: ignore[arg-type]
    for i in range(50):
        header, view = receiver.recv()
        assert header.index == i and (view == i).all()
    assert process.pid
    os.kill(process.pid, signal.SIGKILL)
    start = time.monotonic()
    with pytest.raises(ChannelAborted):
        for _ in range(4):  # what was on its way may still arrive
            receiver.recv()
    assert time.monotonic() - start < 1
    receiver.close()
    process.join(5)
    assert [p.name for p in tmp_path.iterdir()] in ([], ["c.store"]), "no socket is left behind"


def _echo(kind: str, there: str, back: str, spec: TensorSpec, count: int) -> None:
    torch.set_num_threads(1)
    incoming = open_channel(kind, spec, "recv", there, slots=2, device=CPU)  # type: ignore[arg-type]
    outgoing = open_channel(kind, spec, "send", back, slots=2, device=CPU)  # type: ignore[arg-type]
    for _ in range(count):
        header, view = incoming.recv()
        outgoing.send(view, header)
    with contextlib.suppress(ChannelAborted):
        incoming.recv()


@pytest.mark.parametrize("kind", KINDS)
def test_a_hop_of_a_mebibyte_is_quick(kind: str, tmp_path: Path) -> None:
    spec, count = TensorSpec((1 << 20,), "uint8"), 150
    there, back = str(tmp_path / "there"), str(tmp_path / "back")
    process = multiprocessing.get_context("spawn").Process(target=_echo, args=(kind, there, back, spec, count))
    process.start()
    outgoing = open_channel(kind, spec, "send", there, slots=2, device=CPU)  # type: ignore[arg-type]
    incoming = open_channel(kind, spec, "recv", back, slots=2, device=CPU)  # type: ignore[arg-type]
    tensor = torch.randint(0, 255, spec.shape, dtype=torch.uint8)
    hops = []
    for i in range(count):
        start = time.perf_counter()
        outgoing.send(tensor, Header(i, 0))
        _, view = incoming.recv()
        hops.append((time.perf_counter() - start) / 2)
        assert i or torch.equal(view, tensor)
    outgoing.close()
    incoming.close()
    process.join(10)
    hops.sort()
    median = hops[count // 2]
    print(f"\n{kind}: a hop of 1 MiB takes {median * 1e3:.2f} ms (median), {hops[-2] * 1e3:.2f} ms (p99)")
    assert median < 0.005, "ten times what it takes on an idle machine"
