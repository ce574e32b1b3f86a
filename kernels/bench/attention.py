"""Which attention of one layer costs least: python -m kernels.bench.attention

Every variant runs for a while in a captured graph over several caches, so that neither the L2 cache nor a cold card
makes it look faster. It is checked against exact attention on a few rows. Energy counts as much as time: a card at its
power cap trades one for the other. The first shape is tried with all variants, the others with those that may win.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernels.attention import attend
from kernels.attention_fa3 import attend_fa3
from kernels.attention_triton import Tiling, attend_triton
from kernels.bench.floor import unit
from kernels.bench.timing import capture, sustained
from kernels.fp8 import FP8

HEAD_DIM = 128
TOKENS = 2992
SECONDS = 1.5
# (heads, queries, chunks of context): ranks and stages of a 57B step.
SHAPES = (
    (20, 2992, 9),
    (20, 2992, 5),
    (60, 2992, 9),
    (60, 2992, 5),
    (30, 2992, 9),
    (30, 2992, 5),
    (30, 2992, 4),
    (15, 2992, 9),
    (12, 2992, 9),
)
CONTENDERS = ("fa3 fp8", "fa3 fp8, last wave split", "fa3 fp8, 2 splits", "triton 128x128", "triton 128x64")


@dataclass(frozen=True)
class Operands:
    """One layer: q [queries, heads, 128], k, v [keys, heads, 128], v with its key axis contiguous, scales [heads]."""

    q: Tensor
    k: Tensor
    v: Tensor
    columns: Tensor
    scale: Tensor


Variant = Callable[[Operands], Tensor]


def operands(heads: int, queries: int, keys: int) -> Operands:
    v = unit(keys, heads, HEAD_DIM)
    columns = torch.empty(heads, HEAD_DIM, keys, dtype=torch.uint8, device="cuda")
    columns.copy_(v.view(torch.uint8).permute(1, 2, 0))
    return Operands(
        q=unit(queries, heads, HEAD_DIM),
        k=unit(keys, heads, HEAD_DIM),
        v=v,
        columns=columns.view(FP8).permute(2, 0, 1),
        scale=torch.ones(heads, device="cuda"),
    )


def fa3(x: Operands, *, batch: int = 1, rows: slice = slice(None), **options: object) -> Tensor:
    """FlashAttention-3 with the heads dealt to `batch` entries; returns the last entry."""
    from fa3_fwd_interface import flash_attn_func

    def dealt(t: Tensor) -> Tensor:
        return t.unflatten(1, (batch, -1)).transpose(0, 1) if batch > 1 else t[None]

    q, k, v = dealt(x.q[rows]), dealt(x.k), dealt(x.v)
    scale = x.scale.view(batch, -1)
    out = flash_attn_func(q, k, v, q_descale=scale, k_descale=scale, v_descale=scale, **options)
    return out[-1]


def fa3_in_two_calls(x: Operands) -> Tensor:
    """The last, partly filled block of queries in a call of its own, over splits of the keys."""
    border = x.q.shape[0] // 128 * 128
    return torch.cat((fa3(x, rows=slice(border)), fa3(x, rows=slice(border, None), num_splits=6)))


def padded(x: Operands, queries: int) -> Operands:
    return replace(x, q=torch.cat((x.q, x.q[: queries - len(x.q)])))


def triton(x: Operands, tiling: Tiling, columns: bool = True) -> Tensor:
    return attend_triton(x.q, x.k, x.columns if columns else x.v, x.scale, x.scale, x.scale, tiling=tiling)


def variants() -> Iterator[tuple[str, Callable[[Operands], Operands], Variant]]:
    """Name, preparation outside the graph, work inside it."""

    def same(x: Operands) -> Operands:
        return x

    def halved(x: Operands) -> Operands:
        q, k, v = (t.to(torch.bfloat16) for t in (x.q, x.k, x.v))
        return replace(x, q=q, k=k, v=v)

    def moved(x: Operands, deviation: float) -> Operands:
        q, k, v = ((t.float() * deviation).to(FP8) for t in (x.q, x.k, x.v))
        return replace(x, q=q, k=k, v=v, scale=x.scale / deviation)

    yield "fa3 fp8", same, fa3
    yield "fa3 fp8, last wave split", same, lambda x: attend_fa3(x.q, x.k, x.v, x.scale, x.scale, x.scale)
    for deviation in (0.06, 0.25, 16, 80):
        yield f"fa3 fp8, deviation {deviation:g}", lambda x, d=deviation: moved(x, d), fa3
    for splits in (2, 3):
        yield f"fa3 fp8, {splits} splits", same, lambda x, splits=splits: fa3(x, num_splits=splits)
    for queries in (3024, 3072):
        yield f"fa3 fp8, {queries} queries", lambda x, n=queries: padded(x, n), fa3
    yield "fa3 fp8, last queries apart", same, fa3_in_two_calls
    yield "fa3 fp8, pack_gqa", same, lambda x: fa3(x, pack_gqa=True)
    yield "fa3 fp8, batch of 2", same, lambda x: fa3(x, batch=2)
    yield "fa3 fp8, sm_margin 4", same, lambda x: fa3(x, sm_margin=4)
    yield "fa3 bf16", halved, lambda x: attend(x.q, x.k, x.v, backend="fa3")
    yield "cudnn bf16", halved, lambda x: attend(x.q, x.k, x.v, backend="cudnn")
    for keys in (128, 64):
        tiling = Tiling(128, keys, 8, 3, tma=True)
        yield f"triton 128x{keys}", same, lambda x, t=tiling: triton(x, t)
        yield f"triton 128x{keys}, v rows", same, lambda x, t=tiling: triton(x, t, columns=False)


def deviation(out: Tensor, x: Operands) -> float:
    """Relative error on 64 queries of the last head, one of 0.03 being FP8 probabilities."""
    q, k, v = (t[:, -1].float() * x.scale[-1] for t in (x.q[-64:], x.k, x.v))
    expected = torch.softmax(q @ k.t() / HEAD_DIM**0.5, -1) @ v
    return ((out[-64:, -1].float() - expected).norm() / expected.norm()).item()


@torch.inference_mode()
def compare(heads: int, queries: int, context: int, wanted: Callable[[str], bool], seconds: float) -> None:
    """Print one table."""
    flops = 4.0 * queries * context * TOKENS * heads * HEAD_DIM
    caches = [operands(heads, queries, context * TOKENS) for _ in range(4)]
    print(f"\n{heads} heads, {queries} queries, {context} x {TOKENS} keys", flush=True)
    print(f"{'variant':36}{'us':>7}{'TFLOP/s':>9}{'MHz':>6}{'W':>5}{'J/TFLOP':>9}{'error':>8}")
    for name, prepare, work in variants():
        if not wanted(name):
            continue
        try:
            prepared = [prepare(x) for x in caches]
            error = deviation(work(prepared[0]), prepared[0])
            graph = capture(lambda work=work, prepared=prepared: [work(x) for x in prepared * 2])
            timing = sustained(graph, seconds)
        except Exception as failure:  # a build without the variant, a compiler that can't: the others go on
            print(f"{name:36}{type(failure).__name__}: {' '.join(str(failure).split())[:90]}", flush=True)
            continue
        work_done = flops * 2 * len(prepared)
        print(
            f"{name:36}{timing.ms * 1e3 / (2 * len(prepared)):7.0f}{timing.teraflops(work_done):9.0f}{timing.mhz:6.0f}"
            f"{timing.watts:5.0f}{timing.joules_per_teraflop(work_done):9.3f}{error:8.4f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="variants whose name holds this")
    parser.add_argument("--shapes", type=int, nargs="*", default=range(len(SHAPES)), help="indices into SHAPES")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each variant")
    arguments = parser.parse_args()
    print(torch.cuda.get_device_name(), f"torch {torch.__version__}")
    for index in arguments.shapes:
        everything = bool(arguments.only) or index == 0
        compare(
            *SHAPES[index],
            wanted=lambda name, everything=everything: arguments.only in name if everything else name in CONTENDERS,
            seconds=arguments.seconds,
        )


if __name__ == "__main__":
    main()
