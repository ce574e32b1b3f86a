"""Every exchange gives each rank what one rank alone would have, chunk after chunk, also where rows are padded."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from kernels.comm.exchange import CollectiveExchange, Exchange, ExchangeBroken, LocalExchange, PeerExchange
from kernels.comm.peer_barrier import PeerBarrier
from kernels.comm.peer_memory import SimulatedMemory
from kernels.fp8 import FP8
from kernels.write_qkv import ProjectedQkv, QkvScales, QkvTarget

TOKENS, HEADS, HEAD_DIM, SLOTS, CHUNKS = 44, 6, 16, 3, 4
DIM = HEADS * HEAD_DIM


@dataclass(frozen=True)
class Case:
    """dtype of targets, and the layout of values."""

    dtype: torch.dtype
    transposed: bool

    @property
    def scale(self) -> float | None:
        return 0.02 if self.dtype == FP8 else None


CASES = {"float32": Case(torch.float32, False), "fp8": Case(FP8, False), "fp8 transposed": Case(FP8, True)}


class Layer:
    """One rank's part of a layer: its targets, and a step that ends in something like attention."""

    def __init__(self, exchange: Exchange, case: Case, rows: int, device: str) -> None:
        heads, ring = HEADS // exchange.size, SLOTS * TOKENS
        shape = (heads, HEAD_DIM, ring) if case.transposed else (ring, heads, HEAD_DIM)
        q = exchange.share((exchange.size * rows, heads, HEAD_DIM), case.dtype)
        keys, values = exchange.share((ring, heads, HEAD_DIM), case.dtype), exchange.share(shape, case.dtype)
        self.targets = [QkvTarget(*parts, case.transposed) for parts in zip(q, keys, values, strict=True)]
        self.outputs = exchange.share((rows, DIM), case.dtype)
        self.exchange, self.case, self.rows, self.device = exchange, case, rows, device
        self.cursor = torch.zeros((), dtype=torch.int64, device=device)

    def write(self, chunk: int) -> QkvTarget:
        """The chunk's qkv, of this rank's rows; padding is nonsense."""
        rank, size, case = self.exchange.rank, self.exchange.size, self.case
        generator = torch.Generator().manual_seed(chunk)
        qkv = torch.randn(TOKENS, 3 * DIM, generator=generator)
        angles = torch.randn(TOKENS, HEAD_DIM // 2, generator=generator)
        padding = size * self.rows - TOKENS
        qkv = torch.cat((qkv, torch.full((padding, 3 * DIM), 7.0)))
        angles = torch.cat((angles, torch.zeros(padding, HEAD_DIM // 2)))
        own = slice(rank * self.rows, (rank + 1) * self.rows)
        weight = torch.linspace(0.5, 1.5, DIM, device=self.device)
        scales = None
        if case.dtype == FP8:
            scales = QkvScales(*(torch.linspace(a, 2 * a, HEADS, device=self.device) for a in (0.01, 0.011, 0.012)))
        self.cursor.fill_(chunk % SLOTS * TOKENS)
        return self.exchange.write(
            ProjectedQkv(
                qkv[own].to(self.device),
                weight,
                weight.flip(0),
                angles[own].cos().to(self.device),
                angles[own].sin().to(self.device),
            ),
            targets=self.targets,
            cursor=self.cursor,
            tokens=TOKENS,
            scales=scales,
        )

    def collect(self, target: QkvTarget) -> Tensor:
        """Something that depends on q, k and v of the rank's heads alone, and on all of them."""
        values = target.values.float().permute(2, 0, 1) if target.values_transposed else target.values.float()
        mean = torch.einsum("rhd,rhe->hde", target.keys.float(), values) / len(target.keys)
        o = torch.einsum("qhd,hde->qhe", target.q.float(), mean).flatten(1) / 50
        scale = None if self.case.scale is None else torch.tensor(self.case.scale, device=self.device)
        return self.exchange.collect(o if scale is not None else o.to(target.q.dtype), scale, self.outputs)


def rows_of(size: int) -> int:
    return -(-TOKENS // (16 * size)) * 16 if size > 1 else TOKENS


def expected(case: Case, device: str) -> list[Tensor]:
    """Rows of all chunks, from one rank alone."""
    layer = Layer(LocalExchange(device), case, TOKENS, device)
    return [layer.collect(layer.write(chunk)).float().cpu().clone() for chunk in range(CHUNKS)]


def assert_rows(got: Tensor, want: Tensor, case: Case) -> None:
    got = got.float().cpu()[: len(want)]
    if case.dtype == FP8:
        # Sums in another order may fall on the other side of a rounding border: one step of e4m3 is 1/8.
        assert ((got - want).abs() <= want.abs() / 8 + 2**-9).all()
        assert (got != want).float().mean() < 0.02
    else:
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("name", CASES)
def test_writes_to_peers(device: str, size: int, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks take turns on one device, so nobody needs to wait for anybody."""
    monkeypatch.setattr(PeerBarrier, "wait", lambda self: None)
    case, rows = CASES[name], rows_of(size)
    layers = [Layer(PeerExchange(rank), case, rows, device) for rank in SimulatedMemory(size, device).ranks]
    with torch.inference_mode():
        for chunk, want in enumerate(expected(case, device)):
            targets = [layer.write(chunk) for layer in layers]
            for layer, target in zip(layers, targets, strict=True):
                layer.collect(target)
            assert_rows(torch.cat([layer.outputs[layer.exchange.rank] for layer in layers]), want, case)
    for layer in layers:
        layer.exchange.check()
        layer.exchange.close()


def test_an_aborted_exchange_says_why(device: str) -> None:
    exchange = PeerExchange(SimulatedMemory(2, device).ranks[0])
    exchange.abort("rank 1 was called away")
    with pytest.raises(ExchangeBroken, match="rank 1 was called away"):
        exchange.check()
    exchange.close()


def gloo_rank(rank: int, size: int, folder: str) -> None:
    """A process of a gloo group: all cases; then its last rank is killed while the others wait for it."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", size), rank=rank, world_size=size)
    pair = dist.new_group([0, 1])
    for name, case in CASES.items():
        for group in [dist.group.WORLD, *([pair] if rank < 2 else [])]:
            exchange = CollectiveExchange(group, "cpu")
            layer = Layer(exchange, case, rows_of(exchange.size), "cpu")
            with torch.inference_mode():
                rows = torch.stack([layer.collect(layer.write(chunk)).clone() for chunk in range(CHUNKS)])
            torch.save(rows, f"{folder}/{name}-{exchange.size}-{rank}.pt")
            exchange.check()
            exchange.close()
    exchange = CollectiveExchange(dist.group.WORLD, "cpu")
    layer = Layer(exchange, CASES["float32"], rows_of(size), "cpu")
    layer.write(0)
    if rank < 2:  # one waits in vain and is called away
        called_away = CollectiveExchange(pair, "cpu")
        if rank == 0:
            timer = threading.Timer(0.2, called_away.abort, ["called away"])
            timer.start()
            with pytest.raises(ExchangeBroken, match="called away"):
                Layer(called_away, CASES["float32"], rows_of(2), "cpu").write(0)
    dist.barrier()
    if rank == size - 1:
        Path(f"{folder}/killed").write_text(str(time.monotonic()))
        os.kill(os.getpid(), signal.SIGKILL)
    with contextlib.suppress(ExchangeBroken), torch.inference_mode():
        while True:
            layer.write(1)
    Path(f"{folder}/raised-{rank}").write_text(str(time.monotonic()))
    os._exit(0)  # a broken group has nothing left to tear down


def test_collectives_between_processes(tmp_path: Path) -> None:
    size, context = 3, multiprocessing.get_context("spawn")
    processes = [context.Process(target=gloo_rank, args=(rank, size, str(tmp_path))) for rank in range(size)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode in (0, -signal.SIGKILL), "a rank failed or hangs"
    for name, case in CASES.items():
        for ranks in (2, 3):
            parts = [torch.load(tmp_path / f"{name}-{ranks}-{rank}.pt") for rank in range(ranks)]
            for chunk, want in enumerate(expected(case, "cpu")):
                assert_rows(torch.cat([part[chunk].float() for part in parts]), want, case)
    killed = float((tmp_path / "killed").read_text())
    for rank in range(size - 1):
        assert float((tmp_path / f"raised-{rank}").read_text()) - killed < 1
