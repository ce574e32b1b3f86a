"""`python -m kernels.bench.elementwise`: the memory-bound kernels at the shapes of the 57B model, against a plain copy.

Cold: launches go round over buffers many times the size of the L2 cache. Warm: all launches share one set of buffers.
Bytes are those read plus those written, once each; vectors are left out. Each kernel is compared with a cold copy of as
many bytes, because short launches reach less than long ones. Memory reads faster than it writes, so the copy reads and
writes in about the kernel's ratio: bfloat16 to bfloat16, or to FP8.

--sweep compares ways of tiling residual_norm, write_qkv and cross_attend instead.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

import kernels.cross_attend
import kernels.residual_norm
import kernels.write_qkv
from kernels.bench.timing import capture
from kernels.cross_attend import cross_attend
from kernels.dispatch import jit, tl
from kernels.fp8 import FP8
from kernels.gelu import gelu
from kernels.residual_norm import residual_norm
from kernels.scatter_rows import scatter_rows
from kernels.write_qkv import ProjectedQkv, QkvScales, QkvTarget, anchor_sink, write_qkv

DIM, FFN, HEADS, HEAD_DIM, TIME_PAIRS = 7680, 30720, 60, 128, 22
ROWS, RANKS = (1008, 1496, 2992), (1, 3)
CONDITIONS = 64
LAYERS = 60  # of one rank; those of a stage of three are a third of them, with three times the heads
LAUNCHES, REPLAYS = 54, 9
COLD_BYTES = 600_000_000
COPY_BLOCK = 4096


class Case(NamedTuple):
    """One line of the table.

    `launch(i)` runs the kernel on set i of its buffers and moves `moved` bytes; `to` names the copy to hold it against.
    """

    name: str
    moved: int
    sets: int
    launch: Callable[[int], object]
    to: torch.dtype = FP8


def sets_of(moved: int) -> int:
    return COLD_BYTES // moved + 2


def numbers(sets: int, *shape: int, dtype: torch.dtype = torch.bfloat16) -> list[Tensor]:
    return [torch.randn(shape, device="cuda", dtype=torch.bfloat16).to(dtype) for _ in range(sets)]


@jit
def _copy(source, target, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(tl.max_contiguous(target + place, 8), tl.load(source + place).to(target.dtype.element_ty))


def copies(to: torch.dtype, moved: int) -> Case:
    """The ceiling of kernels that move so many bytes."""
    programs = moved // (2 + to.itemsize) // COPY_BLOCK
    sets, shape = sets_of(moved), (programs, COPY_BLOCK)
    sources, targets = numbers(sets, *shape), numbers(sets, *shape, dtype=to)
    return Case(
        f"copy to {to}",
        programs * COPY_BLOCK * (2 + to.itemsize),
        sets,
        lambda i: _copy[(programs,)](sources[i], targets[i], BLOCK=COPY_BLOCK, num_warps=4),
    )


def residual_norms(rows: int, precision: Tensor | str) -> Case:
    moved = rows * DIM * (2 + 2 + 2 + 1)
    sets = sets_of(moved)
    x, branch = numbers(sets, rows, DIM), numbers(sets, rows, DIM)
    gate, scale, shift = numbers(3, DIM)
    name = f"residual_norm {'rows' if isinstance(precision, str) else 'static'}, {rows} rows"
    return Case(
        name,
        moved,
        sets,
        lambda i: residual_norm(x[i], branch[i], gate, scale=scale, shift=shift, to=precision),
        torch.bfloat16,
    )


def gelus(rows: int, precision: Tensor | str) -> Case:
    moved = rows * FFN * (2 + 1)
    x = numbers(sets_of(moved), rows, FFN)
    name = f"gelu {'rows' if isinstance(precision, str) else 'static'}, {rows} rows"
    return Case(name, moved, len(x), lambda i: gelu(x[i], precision))


def qkv_writes(rows: int, ranks: int, transposed: bool) -> Case:
    """The last rank's rows, each set into another slot of the ring."""
    moved = 3 * rows * DIM * (2 + 1)
    sets = sets_of(moved)
    qkv = numbers(sets, rows, 3 * DIM)
    norm_q, norm_k = numbers(2, DIM)
    angles = torch.rand(rows, HEAD_DIM // 2, device="cuda")
    cos, sin = angles.cos(), angles.sin()
    scales = QkvScales(*(torch.full((HEADS,), 0.02, device="cuda") for _ in range(3)))
    heads, tokens = HEADS // ranks, ranks * rows
    ring_rows = -(-sets * tokens // 16) * 16

    def empty(*shape: int) -> Tensor:
        return torch.empty(shape, device="cuda", dtype=FP8)

    targets = [
        QkvTarget(
            q=empty(tokens, heads, HEAD_DIM),
            keys=empty(ring_rows, heads, HEAD_DIM),
            values=empty(heads, HEAD_DIM, ring_rows) if transposed else empty(ring_rows, heads, HEAD_DIM),
            values_transposed=transposed,
        )
        for _ in range(ranks)
    ]
    cursors = torch.arange(sets, device="cuda") * tokens

    def launch(i: int) -> None:
        write_qkv(
            ProjectedQkv(qkv[i], norm_q, norm_k, cos, sin),
            targets=targets,
            cursor=cursors[i],
            first_row=tokens - rows,
            tokens=tokens,
            scales=scales,
        )

    return Case(f"write_qkv {'V^T' if transposed else 'V'}, {rows} rows, n={ranks}", moved, sets, launch)


def rows_scattered(rows: int, ranks: int) -> Case:
    moved = rows * DIM * (2 + 1)
    sets = sets_of(moved)
    o = numbers(sets, ranks * rows, DIM // ranks)
    targets = [numbers(ranks, rows, DIM, dtype=FP8) for _ in range(sets)]
    scale = torch.tensor(0.02, device="cuda")
    return Case(
        f"scatter_rows, {rows} rows, n={ranks}", moved, sets, lambda i: scatter_rows(o[i], scale, targets[i], 0)
    )


def cross_attentions(rows: int) -> Case:
    """q read once and the result written; the pass that finds the norms is not counted, nor are keys and values."""
    moved = rows * DIM * (2 + 1)
    sets = sets_of(moved)
    q, norm = numbers(sets, rows, DIM), torch.ones(DIM, device="cuda", dtype=torch.bfloat16)
    k, v = numbers(2, CONDITIONS, HEADS, HEAD_DIM)
    scale = torch.tensor(0.02, device="cuda")
    name = f"cross_attend, {rows} rows, {CONDITIONS} keys"
    return Case(name, moved, sets, lambda i: cross_attend(q[i], norm, k, v, to=scale))


def anchors(layers: int, ranks: int) -> Case:
    """One launch for all layers, as in a step. Of each head no more than the channels of time are touched."""
    tokens, heads = ROWS[-1], HEADS // ranks
    sink = torch.zeros(layers, tokens, heads, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
    ring = torch.zeros(layers, tokens, heads, HEAD_DIM, device="cuda", dtype=torch.uint8).view(FP8)
    angles = torch.rand(tokens, HEAD_DIM // 2, device="cuda")
    cos, sin = angles.cos()[:, :TIME_PAIRS], angles.sin()[:, :TIME_PAIRS]
    scale = torch.full((layers, heads), 0.02, device="cuda")
    return Case(
        f"anchor_sink, {layers} layers, n={ranks}",
        layers * tokens * heads * 2 * TIME_PAIRS * (2 + 1),
        1,
        lambda i: anchor_sink(sink, cos, sin, ring, scale),
    )


def cases() -> Iterator[Case]:
    """One after another, so that each frees its buffers for the next."""
    static = torch.tensor(0.02, device="cuda")
    for rows in ROWS:
        yield residual_norms(rows, static)
        yield residual_norms(rows, "rows")
        yield gelus(rows, static)
        yield gelus(rows, "rows")
        yield cross_attentions(rows)
        for ranks in RANKS:
            yield qkv_writes(rows, ranks, transposed=True)
            yield qkv_writes(rows, ranks, transposed=False)
            yield rows_scattered(rows, ranks)
    for ranks in RANKS:
        yield anchors(LAYERS * ranks // max(RANKS), ranks)


def sweep() -> Iterator[Case]:
    """The kernels cut in several ways; the first of each is how they are."""
    static = torch.tensor(0.02, device="cuda")
    norm, write, cross = kernels.residual_norm, kernels.write_qkv, kernels.cross_attend
    for (per_thread, stages), rows in itertools.product(((32, 3), (16, 3), (64, 3), (32, 2), (32, 4)), ROWS[::2]):
        norm.PER_THREAD, norm.STAGES = per_thread, stages
        case = residual_norms(rows, static)
        yield case._replace(name=f"norm, {rows} rows, {per_thread} a thread, {stages} stages")
    for (tile, warps, registers, stages, programs), rows in itertools.product(
        (
            (64, 4, 168, 2, 3),
            (64, 4, 168, 3, 3),
            (64, 4, 168, 1, 3),
            (64, 4, 168, 2, 2),
            (64, 4, 168, 3, 2),
            (64, 4, 168, 2, 4),
            (64, 4, 168, 1, 32),
            (64, 4, 128, 2, 4),
            (64, 8, 128, 3, 2),
            (128, 8, 168, 2, 2),
            (128, 8, 255, 3, 1),
        ),
        ROWS[::2],
    ):
        cross.ROWS, cross.WARPS, cross.REGISTERS, cross.STAGES, cross.PROGRAMS = (
            tile,
            warps,
            registers,
            stages,
            programs,
        )
        case = cross_attentions(rows)
        name = f"cross, {rows} rows, {tile} each, {warps} warps, {registers}, {stages} stages, {programs} an SM"
        yield case._replace(name=name)
    for (warps, stages), rows in itertools.product(((8, 4), (4, 4), (8, 3), (8, 5), (16, 4)), ROWS[::2]):
        write.WARPS, write.STAGES = warps, stages
        case = qkv_writes(rows, RANKS[-1], transposed=False)
        yield case._replace(name=f"write_qkv, {rows} rows, {warps} warps, {stages} stages")


def microseconds(launch: Callable[[int], object], sets: int) -> float:
    """Median time of a launch within a captured graph that goes round over `sets` sets of buffers."""
    results: list[object] = [None] * sets  # kept, so that each set has its own output

    def launches() -> None:
        for i in range(LAUNCHES):
            results[i % sets] = launch(i % sets)

    graph = capture(launches)
    times = []
    for _ in range(REPLAYS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / LAUNCHES)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sweep", action="store_true", help="compare ways of cutting three of the kernels instead")
    report(sweep() if parser.parse_args().sweep else cases())


@torch.inference_mode()
def report(given: Iterable[Case]) -> None:
    """Time each case and print a line about it."""
    print(torch.cuda.get_device_name())
    ceilings: dict[tuple[torch.dtype, int], float] = {}
    print(f"{'':64}{'MB':>7}{'us':>8}{'copy':>8}{'TB/s':>7}{'of copy':>9}{'us warm':>9}")
    for case in given:
        cold, warm = microseconds(case.launch, case.sets), microseconds(case.launch, 1)
        ceiling = ceilings.get((case.to, case.moved))
        if ceiling is None:
            copy = copies(case.to, case.moved)
            ceiling = ceilings[case.to, case.moved] = microseconds(copy.launch, copy.sets) * case.moved / copy.moved
            del copy  # its buffers
        print(
            f"{case.name:64}{case.moved / 1e6:7.0f}{cold:8.1f}{ceiling:8.1f}{case.moved / cold / 1e6:7.2f}"
            f"{ceiling / cold:9.0%}{warm:9.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
