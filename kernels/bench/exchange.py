"""The exchange of a sequence group at the 57B model's shapes, on the GPUs that there are.

    python -m kernels.bench.exchange                 # every group size that the GPUs allow, 2 to 4; a minute
    python -m kernels.bench.exchange --ranks 3 --steps 10000
    python -m kernels.bench.exchange --see-all       # every process sees all GPUs, not only its own as in Ray's actors

For each way it prints the time of one layer's exchange (q, k, v to the heads' owners, outputs back), and what it adds
to a step of 60 layers with their GEMMs. "local" is the same work for one rank without neighbours; all above it is
the price of the exchange. Then both ways take turns for some thousand steps, and a rank is killed in the middle. With a
single GPU the ranks are simulated in one process, which checks the writes and the barrier. Exits with 1 if a result was
wrong or a rank hung.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess

import torch
import torch.distributed as dist
from torch import Tensor

from kernels.bench.timing import capture
from kernels.comm.exchange import CollectiveExchange, Exchange, ExchangeBroken, LocalExchange, PeerExchange
from kernels.comm.group import open_group
from kernels.comm.peer_memory import SimulatedMemory, SymmetricMemory
from kernels.fp8 import FP8, Quantised
from kernels.linear import linear_fp8
from kernels.write_qkv import ProjectedQkv, QkvScales, QkvTarget, write_qkv

DIM, HEADS, HEAD_DIM, TOKENS, LAYERS = 7680, 60, 128, 2992, 60
SLOTS = 3  # of the ring; its length does not matter here
GRAPH_LAYERS = 10
PATIENCE = 5.0
TOO_LONG = 120.0


class Layers:
    """One rank's part of some layers, with what their exchange needs.

    Args:
        exchange: of the rank; others of its group may then write to the same memory.
        rows: of each rank.
        layers: that have a ring of their own.
    """

    def __init__(self, exchange: Exchange, rows: int, layers: int, device: str) -> None:
        self.rows, self.device = rows, device
        heads = HEADS // exchange.size
        ring = (layers, SLOTS * TOKENS, heads, HEAD_DIM)
        q = exchange.share((exchange.size * rows, heads, HEAD_DIM), FP8)
        keys, values = exchange.share(ring, FP8), exchange.share(ring, FP8)
        self.targets = [
            [QkvTarget(a, b[layer], c[layer]) for a, b, c in zip(q, keys, values, strict=True)]
            for layer in range(layers)
        ]
        self.outputs = exchange.share((rows, DIM), FP8)
        self.rank, self.size = exchange.rank, exchange.size
        generator = torch.Generator(device).manual_seed(0)  # the same chunk on every rank
        whole = torch.randn(self.size * rows, 3 * DIM, device=device, dtype=torch.bfloat16, generator=generator)
        self.qkv = whole[self.own].contiguous()
        angles = torch.randn(self.size * rows, HEAD_DIM // 2, device=device, generator=generator)[self.own]
        self.cos, self.sin = angles.cos(), angles.sin()
        self.weight = torch.ones(DIM, device=device, dtype=torch.bfloat16)
        self.scales = QkvScales(*(torch.full((HEADS,), 0.01, device=device) for _ in range(3)))
        self.cursor = torch.zeros((), dtype=torch.int64, device=device)
        self.scale = torch.tensor(0.01, device=device)
        self.o = torch.randn(self.size * rows, DIM // self.size, device=device, dtype=torch.bfloat16)

    @property
    def own(self) -> slice:
        """This rank's rows."""
        return slice(self.rank * self.rows, (self.rank + 1) * self.rows)

    def write(self, exchange: Exchange, layer: int, qkv: Tensor) -> QkvTarget:
        """The first half of a layer's exchange."""
        return exchange.write(
            ProjectedQkv(qkv, self.weight, self.weight, self.cos, self.sin),
            targets=self.targets[layer],
            cursor=self.cursor,
            tokens=TOKENS,
            scales=self.scales,
        )

    def collect(self, exchange: Exchange) -> Tensor:
        """The second half."""
        return exchange.collect(self.o, self.scale, self.outputs)

    def state(self) -> list[Tensor]:
        """All that the exchange writes to on this rank, as bytes."""
        own = [target[self.rank % len(target)] for target in self.targets]
        tensors = [
            own[0].q,
            *(t.keys for t in own),
            *(t.values for t in own),
            self.outputs[self.rank % len(self.outputs)],
        ]
        return [x.view(torch.uint8) for x in tensors]


@dataclass
class Gemms:
    """The products on both sides of the exchange, and what they multiply."""

    x: Quantised
    wqkv: Quantised
    wo: Quantised

    @staticmethod
    def make(rows: int, device: str) -> Gemms:
        one = torch.ones((), device=device)
        x, wqkv, wo = (
            Quantised(torch.randn(n, DIM, device=device, dtype=torch.bfloat16).to(FP8), one)
            for n in (rows, 3 * DIM, DIM)
        )
        return Gemms(x, wqkv, wo)


def step(layers: Layers, exchange: Exchange, gemms: Gemms | None) -> Callable[[], None]:
    """GRAPH_LAYERS exchanges, between their GEMMs if there are some."""

    def run() -> None:
        for layer in range(GRAPH_LAYERS):
            qkv = layers.qkv if gemms is None else linear_fp8(gemms.x, gemms.wqkv)
            layers.write(exchange, layer % len(layers.targets), qkv)
            rows = layers.collect(exchange)
            if gemms is not None:
                linear_fp8(Quantised(rows, layers.scale), gemms.wo)

    return run


def halves(layers: Layers, exchange: PeerExchange, gemms: Gemms) -> Callable[[], None]:
    """The same with the writes of the first half of the rows beside the GEMM of the second."""
    side = torch.cuda.Stream()
    cut = layers.rows // 32 * 16

    def write(layer: int, qkv: Tensor, part: slice) -> None:
        write_qkv(
            ProjectedQkv(qkv, layers.weight, layers.weight, layers.cos[part], layers.sin[part]),
            targets=layers.targets[layer],
            cursor=layers.cursor,
            first_row=layers.own.start + part.start,
            tokens=TOKENS,
            scales=layers.scales,
        )

    def run() -> None:
        main = torch.cuda.current_stream()
        first, second = slice(0, cut), slice(cut, layers.rows)
        for layer in range(GRAPH_LAYERS):
            number = layer % len(layers.targets)
            qkv = linear_fp8(Quantised(gemms.x.data[first], gemms.x.scale), gemms.wqkv)
            side.wait_stream(main)
            with torch.cuda.stream(side):
                write(number, qkv, first)
            rest = linear_fp8(Quantised(gemms.x.data[second], gemms.x.scale), gemms.wqkv)
            write(number, rest, second)
            main.wait_stream(side)
            exchange.barrier.wait()
            linear_fp8(Quantised(layers.collect(exchange), layers.scale), gemms.wo)

    return run


def gemms_alone(layers: Layers, gemms: Gemms) -> Callable[[], None]:
    """The products without anything between them."""

    def run() -> None:
        for _ in range(GRAPH_LAYERS):
            linear_fp8(gemms.x, gemms.wqkv)
            linear_fp8(Quantised(layers.outputs[0], layers.scale), gemms.wo)

    return run


def barriers(exchange: PeerExchange) -> Callable[[], None]:
    """As many barriers as a step has layers."""

    def run() -> None:
        for _ in range(GRAPH_LAYERS):
            exchange.barrier.wait()

    return run


def measure(rank: int, size: int, path: str, device: str, seconds: float, steps: int, results: Connection) -> None:
    """One rank of a group: times, then both ways in turn; sends (lines, broken) if its rank is 0."""
    group = open_group(path, rank, size, device)
    rows = -(-TOKENS // (16 * size)) * 16
    peer = PeerExchange(SymmetricMemory(group, device), PATIENCE)
    collective = CollectiveExchange(group, device)
    local = LocalExchange(device)
    layers = Layers(peer, rows, GRAPH_LAYERS, device)
    alone = Layers(local, rows, GRAPH_LAYERS, device)
    gemms = Gemms.make(rows, device)

    def timed(run: Callable[[], None]) -> float:
        """Microseconds a layer, the slowest rank's."""
        graph = capture(run)
        dist.barrier()
        # Every rank must replay as often as the others, so the number of replays is agreed on and not the seconds.
        graph.replay()
        torch.cuda.synchronize()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        dist.barrier()
        begin.record()
        for _ in range(5):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        count = torch.tensor(max(10, int(seconds * 5e3 / begin.elapsed_time(end))), device=device)
        dist.all_reduce(count, dist.ReduceOp.MAX)
        begin.record()
        for _ in range(int(count)):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        peer.check()
        collective.check()
        each = torch.tensor(begin.elapsed_time(end) / int(count) / GRAPH_LAYERS * 1e3, device=device)
        dist.all_reduce(each, dist.ReduceOp.MAX)
        return float(each)

    with torch.inference_mode():
        exchanges: dict[str, tuple[Layers, Exchange]] = {
            "local": (alone, local),
            "NCCL": (layers, collective),
            "peer": (layers, peer),
        }
        bare = {name: timed(step(*pair, None)) for name, pair in exchanges.items()}
        beside = {name: timed(step(*pair, gemms)) for name, pair in exchanges.items()}
        beside["peer, row halves"] = timed(halves(layers, peer, gemms))
        products = timed(gemms_alone(alone, gemms))
        barrier = timed(barriers(peer))
        lines = [
            f"{size} ranks of {rows} rows; both GEMMs alone {products:.1f} us a layer, a barrier {barrier:.2f} us",
            f"{'':18}{'exchange alone':>16}{'with both GEMMs':>18}{'over local':>12}{'a step of 60 loses':>20}",
        ]
        for name, micros in beside.items():
            over = micros - beside["local"]
            only = f"{bare[name]:13.1f} us" if name in bare else f"{'':16}"
            lines.append(f"{name:18}{only}{micros:15.1f} us{over:9.1f} us{over * LAYERS * 1e-3:17.2f} ms")
        graphs = {
            name: capture(step(layers, exchange, None)) for name, exchange in (("NCCL", collective), ("peer", peer))
        }
        verdict = take_turns(layers, graphs, steps)
        peer.check()
        collective.check()
        graphs.clear()  # or NCCL would wait for their end as it closes
    lines.append(verdict)
    broken = torch.tensor(int("BROKEN" in verdict), device=device)
    dist.all_reduce(broken, dist.ReduceOp.MAX)
    if rank == 0:
        results.send((lines, bool(broken)))
    dist.barrier()
    for exchange in (peer, collective):
        exchange.close()
    dist.destroy_process_group()


def take_turns(layers: Layers, graphs: dict[str, torch.cuda.CUDAGraph], steps: int) -> str:
    """Switch between the ways for `steps` steps each, with a look at what they leave behind now and then."""
    wrong, first, began = 0, None, time.perf_counter()
    for turn in range(steps):
        for graph in graphs.values():
            if turn % (steps // 20 or 1) == 0:
                for part in layers.state():
                    part.zero_()
                torch.cuda.synchronize()
                dist.barrier()  # no rank may be written to while it clears its memory
                graph.replay()
                torch.cuda.synchronize()
                dist.barrier()
                left = [part.clone() for part in layers.state()]
                first = left if first is None else first
                wrong += not all(map(torch.equal, left, first))
            else:
                graph.replay()
    torch.cuda.synchronize()
    names = " and ".join(graphs)
    verdict = "the same bytes" if not wrong else f"BROKEN: {wrong} looks differ"
    return (
        f"{names} in turn, {steps} steps each of {GRAPH_LAYERS} layers, {time.perf_counter() - began:.1f} s: {verdict}"
    )


def wait_in_vain(rank: int, size: int, path: str, device: str, way: str, results: Connection) -> None:
    """Exchange for ever; the last rank is killed. The others send how they ended and when."""
    group = open_group(path, rank, size, device)
    rows = -(-TOKENS // (16 * size)) * 16
    exchange: Exchange = (
        PeerExchange(SymmetricMemory(group, device), TOO_LONG) if way == "peer" else CollectiveExchange(group, device)
    )
    layers = Layers(exchange, rows, 1, device)
    with torch.inference_mode():
        graph = capture(step(layers, exchange, None))
        dist.barrier()
        if rank == 0:
            results.send("ready")
        try:
            while True:
                graph.replay()
                torch.cuda.current_stream().synchronize()
                exchange.check()
        except (ExchangeBroken, RuntimeError) as error:
            results.send((time.monotonic(), str(error)))
    os._exit(0)  # a broken group has nothing left to tear down


def kill_one(size: int, gpus: list[str], see_all: bool, way: str) -> tuple[str, bool]:
    """Kill the last rank in mid-exchange: how long until every other rank raises."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = start(wait_in_vain, size, gpus, see_all, f"{folder}/store", way)
        if not ranks[0][1].poll(TOO_LONG):
            return f"{way}: BROKEN: the ranks do not start", True
        ranks[0][1].recv()
        time.sleep(0.5)
        killed = time.monotonic()
        os.kill(ranks[-1][0].pid or 0, signal.SIGKILL)
        took, why = [], ""
        for process, pipe in ranks[:-1]:
            if pipe.poll(20.0):
                at, why = pipe.recv()
                took.append(at - killed)
            process.kill()
        if len(took) < size - 1:
            return f"{way}: BROKEN: {size - 1 - len(took)} ranks hang after a rank was killed", True
        line = f"{way}: a rank killed, all others raised within {max(took) * 1e3:.0f} ms ({why.splitlines()[0][:60]})"
        return line, max(took) > 1


def start(
    target: Callable[..., None], size: int, gpus: list[str], see_all: bool, path: str, *arguments: object
) -> list[tuple[SpawnProcess, Connection]]:
    """A process and a pipe for each rank."""
    context, ranks = multiprocessing.get_context("spawn"), []
    for rank in range(size):
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus) if see_all else gpus[rank]
        device = f"cuda:{rank if see_all else 0}"
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=target, args=(rank, size, path, device, *arguments, theirs), daemon=True)
        process.start()
        ranks.append((process, ours))
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    return ranks


def run(size: int, gpus: list[str], see_all: bool, seconds: float, steps: int) -> bool:
    """One group size; prints its table and returns whether something was broken."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = start(measure, size, gpus, see_all, f"{folder}/store", seconds, steps)
        while not ranks[0][1].poll(0.2):
            if any(process.exitcode not in (0, None) for process, _ in ranks):
                for process, _ in ranks:
                    process.kill()
                print(f"{size} ranks: BROKEN: a rank failed, see above")
                return True
        lines, broken = ranks[0][1].recv()
        for process, _ in ranks:
            process.join(30)
            process.kill()
    print(*lines, sep="\n")
    for way in ("NCCL", "peer"):
        line, bad = kill_one(size, gpus, see_all, way)
        broken |= bad
        print(line, flush=True)
    print()
    return broken


def simulate(size: int) -> bool:
    """Ranks in one process on one GPU, each on a stream of its own, against one rank alone."""
    device, rows = "cuda", -(-TOKENS // (16 * size)) * 16
    streams = [torch.cuda.Stream() for _ in range(size)]

    def group(patience: float) -> list[tuple[PeerExchange, Layers]]:
        exchanges = [PeerExchange(rank, patience) for rank in SimulatedMemory(size, device).ranks]
        return [(exchange, Layers(exchange, rows, 1, device)) for exchange in exchanges]

    def once(ranks: list[tuple[PeerExchange, Layers]]) -> None:
        for stream, (exchange, layers) in zip(streams, ranks, strict=True):
            with torch.cuda.stream(stream):
                layers.write(exchange, 0, layers.qkv)
                layers.collect(exchange)

    with torch.inference_mode():
        once(group(1e-4))  # loads the kernels, which waits for the device and so must not happen behind a barrier
        torch.cuda.synchronize()
        ranks = group(PATIENCE)
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(200):
            once(ranks)
        torch.cuda.synchronize()
        micros = (time.perf_counter() - began) / 200 * 1e6
        for exchange, _ in ranks:
            exchange.check()
        alone, local = Layers(LocalExchange(device), size * rows, 1, device), LocalExchange(device)
        whole = alone.write(local, 0, alone.qkv)
        parts = [layers.targets[0][exchange.rank] for exchange, layers in ranks]
        names = ("q", "keys", "values")
        joined = [torch.cat([getattr(part, name).view(torch.uint8) for part in parts], 1) for name in names]
        same = all(
            torch.equal(got, getattr(whole, name).view(torch.uint8)) for name, got in zip(names, joined, strict=True)
        )
    for exchange, _ in ranks:
        exchange.close()
    print(
        f"{size} ranks simulated on one GPU, {micros:.0f} us an exchange: {'right' if same else 'BROKEN'}", flush=True
    )
    return not same


def main() -> int:
    """Run everything; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 3, 4], help="group sizes; default: 2 3 4")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each timing")
    parser.add_argument("--steps", type=int, default=2000, help="steps that the two ways take turns for")
    parser.add_argument("--see-all", action="store_true", help="let every process see all GPUs")
    arguments = parser.parse_args()
    present = torch.cuda.device_count()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = visible.split(",") if visible else [str(i) for i in range(present)]
    if present == 0:
        parser.error("there is no GPU here; tests/kernels/comm/test_exchange.py checks the exchange on CPUs")
    print(f"{present} x {torch.cuda.get_device_name(0)}, torch {torch.__version__}", flush=True)
    if present == 1:
        return int(any([simulate(size) for size in arguments.ranks]))
    sizes = [size for size in arguments.ranks if size <= present]
    return int(any([run(size, gpus, arguments.see_all, arguments.seconds, arguments.steps) for size in sizes]))


if __name__ == "__main__":
    raise SystemExit(main())
