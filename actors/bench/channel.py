"""Measures channels between two processes, and checks what `Channel` promises, on this machine's devices.

    python -m actors.bench.channel                    # all kinds that run here
    python -m actors.bench.channel --kind nccl        # needs two GPUs

Prints a table; exits with 1 if a promise was broken.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import get_args

import torch

from actors.channels.opening import Kind, open_channel
from actors.channels.protocol import Channel, ChannelAborted, TensorSpec
from actors.pipeline.header import Header
from actors.pipeline.trace import percentile

# Latent and frames of the small model, the latent of 57B, a mebibyte, 57B's frames and a pipeline part's hidden rows.
SIZES = {
    "latent 18 kB": TensorSpec((48, 17, 11), "bfloat16"),
    "frames 287 kB": TensorSpec((4, 408, 176), "uint8"),
    "57B latent 383 kB": TensorSpec((16, 88, 136), "bfloat16"),
    "1 MiB": TensorSpec((1 << 20,), "uint8"),
    "57B frames 4.6 MB": TensorSpec((4, 1056, 1088), "uint8"),
    "57B hidden 46 MB": TensorSpec((2992, 7680), "bfloat16"),
}
SMALL = SIZES["latent 18 kB"]
TOO_LONG = 30.0


def receive(kind: Kind, spec: TensorSpec, path: str, pace: float, device: str, results: Connection) -> None:
    """The other process: receives tensors, then reports the seconds of each hop, and when and how it ended.

    Args:
        pace: seconds to hold each tensor.
        results: receives "ready" before the channel is opened, then (hops, bad, ended): seconds, how many tensors were
            wrong, the clock at the end.
    """
    torch.set_num_threads(1)
    torch.zeros(1, device=device)  # starts CUDA
    results.send("ready")
    channel = open_channel(kind, spec, "recv", path, slots=2, device=torch.device(device))
    hops: list[float] = []
    bad = 0
    with contextlib.suppress(ChannelAborted):
        while True:
            header, tensor = channel.recv()
            if tensor.is_cuda:
                torch.cuda.current_stream(tensor.device).synchronize()
            hops.append(time.monotonic() - header.stamps[0])
            time.sleep(pace)
            # After the pause, so that a sender that writes to a slot which is being read is noticed.
            sample = tensor.flatten()[:: max(1, tensor.numel() // 1000)]
            bad += header.index != len(hops) - 1 or not bool((sample == pattern(header.index)).all())
    results.send((hops, bad, time.monotonic()))


def pattern(index: int) -> int:
    """What every element of tensor `index` is."""
    return index % 200


class Pair:
    """A sender here and a receiver in a process of its own.

    Attributes:
        opened: seconds that it took to open the channel once both processes were there.
    """

    def __init__(self, kind: Kind, spec: TensorSpec, folder: str, pace: float = 0.0) -> None:
        there = "cuda:1" if kind == "nccl" else "cpu"
        self.device = torch.device("cuda:0" if kind == "nccl" else "cpu")
        self.spec = spec
        path = tempfile.mktemp(dir=folder)  # a name for a socket, which must not exist
        context = multiprocessing.get_context("spawn")
        self._results, theirs = context.Pipe(duplex=False)
        self.process = context.Process(target=receive, args=(kind, spec, path, pace, there, theirs), daemon=True)
        self.process.start()
        theirs.close()
        self._results.recv()  # it has loaded all that it needs
        began = time.monotonic()
        self.channel: Channel = open_channel(kind, spec, "send", path, slots=2, device=self.device)
        self.opened = time.monotonic() - began

    def send(self, count: int, pause: float = 0.0) -> None:
        """Send `count` tensors."""
        for index in range(count):
            tensor = torch.full(self.spec.shape, pattern(index), dtype=self.spec.torch_dtype, device=self.device)
            if tensor.is_cuda:
                torch.cuda.synchronize(self.device)
            now = time.monotonic()
            self.channel.send(tensor, Header(index, 0).stamped(0, now, now))
            time.sleep(pause)

    def finish(self) -> tuple[list[float], int, float]:
        """What the receiver reports."""
        if not self._results.poll(TOO_LONG):
            self.process.kill()
            raise TimeoutError("the receiver does not end")
        report = self._results.recv()
        self.process.join()
        self.channel.close()
        return report


def measure(kind: Kind, spec: TensorSpec, folder: str, count: int = 200) -> tuple[float, float, int]:
    """(median, p99) seconds of a hop, one tensor at a time, and how many tensors were wrong."""
    pair = Pair(kind, spec, folder)
    pair.send(count, pause=0.002)
    time.sleep(0.2)
    pair.channel.abort()
    hops, bad, _ = pair.finish()
    return percentile(hops[5:], 50), percentile(hops[5:], 99), bad + (len(hops) != count)


def check_bounded(kind: Kind, folder: str) -> str:
    """A receiver that takes 50 ms for each tensor must hold the sender back to that, and see them all unharmed."""
    pair = Pair(kind, SMALL, folder, pace=0.05)
    start = time.monotonic()
    pair.send(12)
    seconds = time.monotonic() - start
    time.sleep(0.3)
    pair.channel.abort()
    hops, bad, _ = pair.finish()
    # 12 sends with two slots wait for at least nine releases.
    good = seconds > 9 * 0.05 and bad == 0 and len(hops) == 12
    return f"{'ok' if good else 'BROKEN'}: 12 tensors in {seconds:.2f} s, {bad} wrong"


def check_abort(kind: Kind, folder: str) -> str:
    """Abort must wake a waiting receiver within 100 ms; NCCL lets go of the other GPU's memory, and has 500."""
    pair = Pair(kind, SMALL, folder)
    pair.send(3)
    time.sleep(0.3)
    start = time.monotonic()
    pair.channel.abort()
    took = time.monotonic() - start
    _, _, ended = pair.finish()
    limit = 0.5 if kind == "nccl" else 0.1
    good = ended - start < limit and took < limit
    verdict = "ok" if good else "BROKEN"
    return f"{verdict}: receiver woke after {(ended - start) * 1e3:.1f} ms, the call took {took * 1e3:.1f} ms"


def check_death(kind: Kind, folder: str) -> str:
    """When the receiver is killed, a waiting sender must wake, and its GPU must be usable."""
    pair = Pair(kind, SMALL, folder, pace=60.0)
    woken: list[float] = []

    def feed() -> None:
        with contextlib.suppress(ChannelAborted):
            pair.send(10)
        woken.append(time.monotonic())

    thread = threading.Thread(target=feed, daemon=True)
    thread.start()
    time.sleep(0.5)
    start = time.monotonic()
    pair.process.kill()
    thread.join(5)
    pair.channel.close()
    if not woken:
        return "BROKEN: the sender still waits"
    if pair.device.type == "cuda":
        torch.cuda.synchronize(pair.device)
    good = woken[0] - start < 0.5 and time.monotonic() - start < 5
    return f"{'ok' if good else 'BROKEN'}: sender woke after {(woken[0] - start) * 1e3:.1f} ms"


def check_rebuild(kind: Kind, folder: str) -> str:
    """After the receiver was killed, the sender must let go at once and reach a new one."""
    pair = Pair(kind, SMALL, folder)
    pair.send(3)
    pair.process.kill()
    start = time.monotonic()
    pair.channel.abort()
    pair.channel.close()
    closed = time.monotonic() - start
    again = Pair(kind, SMALL, folder)
    again.send(1)
    time.sleep(0.2)
    again.channel.abort()
    hops, bad, _ = again.finish()
    good = closed < 1 and bad == 0 and len(hops) == 1
    return f"{'ok' if good else 'BROKEN'}: let go in {closed * 1e3:.1f} ms, opened anew in {again.opened * 1e3:.0f} ms"


def check_idle(kind: Kind, folder: str) -> str:
    """Two ends that wait must not spin: share of a core that both processes take."""
    pair = Pair(kind, SMALL, folder)
    pair.send(3)
    time.sleep(0.5)

    def cpu() -> float:
        fields = Path(f"/proc/{pair.process.pid}/stat").read_text().rpartition(")")[2].split()
        return time.process_time() + (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    before = cpu()
    time.sleep(2.0)
    share = (cpu() - before) / 2.0
    pair.channel.abort()
    pair.finish()
    return f"{'ok' if share < 0.1 else 'BROKEN'}: idle ends take {share:.1%} of a core"


CHECKS: dict[str, Callable[[Kind, str], str]] = {
    "bounded": check_bounded,
    "abort": check_abort,
    "death": check_death,
    "rebuild": check_rebuild,
    "idle": check_idle,
}


def main() -> int:
    """Run everything; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = [kind for kind in get_args(Kind) if kind != "local"]
    parser.add_argument("--kind", choices=kinds, action="append", help="default: all that run here")
    chosen = parser.parse_args().kind or [k for k in kinds if k != "nccl" or torch.cuda.device_count() > 1]
    torch.set_num_threads(1)
    broken = False
    for kind in chosen:
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            print(f"\n{kind:20} {'median':>10} {'p99':>10} {'GB/s':>8}")
            for name, spec in SIZES.items():
                median, p99, bad = measure(kind, spec, folder)
                rate = spec.nbytes / median / 1e9
                print(f"{name:20} {median * 1e3:7.3f} ms {p99 * 1e3:7.3f} ms {rate:8.2f}" + " BROKEN" * bool(bad))
                broken |= bool(bad)
            for name, check in CHECKS.items():
                verdict = check(kind, folder)
                print(f"{name:20} {verdict}")
                broken |= verdict.startswith("BROKEN")
    return int(broken)


if __name__ == "__main__":
    raise SystemExit(main())
