"""Heartbeats between real threads, and what counts as silence."""

from __future__ import annotations

import os
import socket
import time

import pytest

from actors.pipeline.heartbeat import BEAT_SECONDS, Address, Heart, Heartbeats


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def send(address: Address, text: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        out.sendto(text.encode(), ("127.0.0.1", address.port))


def test_a_heart_is_heard_with_its_process_and_its_chunks() -> None:
    heartbeats = Heartbeats()
    Heart(heartbeats.address("dit"), lambda: 7)
    give_up = time.monotonic() + 5
    while heartbeats.pid("dit") is None and time.monotonic() < give_up:
        heartbeats.look()
        time.sleep(0.01)
    assert (heartbeats.pid("dit"), heartbeats.moved("dit")) == (os.getpid(), 7)
    heartbeats.close()


def test_silence_is_counted_while_somebody_looks() -> None:
    clock = Clock()
    heartbeats = Heartbeats(clock)
    address = heartbeats.address("room")
    send(address, f"{address.token} room 1 0")
    heartbeats.look()
    assert heartbeats.silent("room") == 0.0
    for _ in range(10):
        clock.now += BEAT_SECONDS
        heartbeats.look()
    assert heartbeats.silent("room") == pytest.approx(10 * BEAT_SECONDS)
    clock.now += 60.0  # the machine slept, the others with it
    heartbeats.look()
    assert heartbeats.silent("room") <= 11.25 * BEAT_SECONDS + 1e-6
    heartbeats.restart()
    assert heartbeats.silent("room") == 0.0
    assert heartbeats.silent("who was never heard") == 0.0
    heartbeats.close()


@pytest.mark.parametrize("text", ["wrong room 1 0", "{token} room", "{token} room one 0", "", "\xff" * 300])
def test_what_others_send_there_is_not_heard(text: str) -> None:
    heartbeats = Heartbeats()
    address = heartbeats.address("room")
    send(address, text.replace("{token}", address.token))
    heartbeats.look()
    assert heartbeats.pid("room") is None
    heartbeats.close()
