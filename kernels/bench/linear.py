"""Rates of a layer's matrix products, sustained: python -m kernels.bench.linear

FP8 with one scale a tensor (what the fast path uses), FP8 with a scale a row and an output, and bfloat16.

With --deviations, FP8 alone with operands of these standard deviations: where in FP8's range a scale places them
decides how many bits toggle, and so how much power a product draws.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch

from kernels.bench.floor import full_range
from kernels.bench.timing import capture, sustained
from kernels.fp8 import FP8_MAX, Quantised, dequantise, quantise
from kernels.linear import linear_fp8

DIM = 7680
# Rows: a rank of three, a rank of two, a pipeline stage.
ROWS = (1008, 1496, 2992)
# (out, in) of the 57B configuration's layers.
WIDTHS = ((3 * DIM, DIM), (DIM, DIM), (4 * DIM, DIM), (DIM, 4 * DIM))
# Weights in turn, none of which survives in the L2 cache until its next use.
WEIGHTS = 4


def report(name: str, work: Callable[[int], object], flops: float, seconds: float) -> None:
    """Time work(0) ... work(WEIGHTS - 1), often enough for a graph of some milliseconds, and print a line."""
    turns = max(1, int(5e12 / (flops * WEIGHTS)))
    try:
        graph = capture(lambda: [work(turn % WEIGHTS) for turn in range(turns * WEIGHTS)])
    except RuntimeError as failure:  # this library has no such product; go on with the others
        print(f"{name:60}{' '.join(str(failure).split())[:90]}", flush=True)
        return
    timing = sustained(graph, seconds)
    done = flops * turns * WEIGHTS
    print(
        f"{name:60}{timing.ms * 1e3 / (turns * WEIGHTS):8.1f} us{timing.teraflops(done):7.0f} TFLOP/s"
        f"{timing.mhz:6.0f} MHz{timing.watts:5.0f} W{timing.joules_per_teraflop(done):7.3f} J/TFLOP",
        flush=True,
    )


@torch.inference_mode()
def compare(rows: int, out: int, inner: int, seconds: float) -> None:
    """Print the lines of one product."""
    flops = 2.0 * rows * out * inner
    name = f"[{rows}, {inner}] x [{out}, {inner}]^T"
    one = torch.ones((), device="cuda") / FP8_MAX
    x, weights = full_range(rows, inner), [full_range(out, inner) for _ in range(WEIGHTS)]
    report(f"{name} fp8", lambda i: linear_fp8(Quantised(x, one), Quantised(weights[i], one)), flops, seconds)
    each, every = one.expand(rows, 1).contiguous(), one.expand(out, 1).contiguous()
    report(f"{name} fp8 rows", lambda i: linear_fp8(Quantised(x, each), Quantised(weights[i], every)), flops, seconds)
    x_half, halves = x.to(torch.bfloat16), [weight.to(torch.bfloat16) for weight in weights]
    report(f"{name} bf16", lambda i: torch.nn.functional.linear(x_half, halves[i]), flops, seconds)


@torch.inference_mode()
def place(rows: int, deviations: list[float], seconds: float) -> None:
    """Print a line for each deviation: the products of a layer, one after another."""
    one = torch.ones((), device="cuda")
    flops = sum(2.0 * rows * out * inner for out, inner in WIDTHS)
    for deviation in deviations:
        layers = [[full_range(*width, deviation=deviation) for width in WIDTHS] for _ in range(WEIGHTS)]
        xs = [full_range(rows, inner, deviation=deviation) for _, inner in WIDTHS]

        def products(i: int, layers: list = layers, xs: list = xs) -> None:
            for x, weight in zip(xs, layers[i], strict=True):
                linear_fp8(Quantised(x, one), Quantised(weight, one))

        exact = torch.randn(2**22, device="cuda")
        stored = dequantise(quantise(exact, 1 / torch.tensor(deviation, device="cuda")))
        error = ((stored - exact).norm() / exact.norm()).item()
        report(f"{rows} rows, deviation {deviation:g}, rounding {error:.4f}", products, flops, seconds)
        del layers, xs, products


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="*", default=ROWS)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each product")
    parser.add_argument("--deviations", type=float, nargs="*", default=[], help="of FP8 operands; these alone")
    arguments = parser.parse_args()
    print(torch.cuda.get_device_name(), f"torch {torch.__version__}")
    for rows in arguments.rows:
        if arguments.deviations:
            place(rows, arguments.deviations, arguments.seconds)
            continue
        for out, inner in WIDTHS:
            compare(rows, out, inner, arguments.seconds)


if __name__ == "__main__":
    main()
