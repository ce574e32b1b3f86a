"""The floor of a DiT step on a card: its bare matrix products and attention, with nothing between them.

    python -m kernels.bench.floor --rows 1008 --heads 20 --context 9 --layers 60

Two shares of a step of the 57B configuration are of interest: a sequence rank of three (1,008 rows, 20 heads, 60
layers) and a pipeline stage of three (2,992 rows, 60 heads, 20 layers).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.attention import Backend, attend
from kernels.bench.timing import Timing, capture, sustained
from kernels.fp8 import FP8, FP8_MAX, Quantised
from kernels.linear import linear_fp8


def product_widths(dim: int, ffn_dim: int) -> list[tuple[int, int]]:
    """(out, in) widths in the order of a layer: q, k and v; o; cross q; cross o; feed-forward."""
    return [(3 * dim, dim), (dim, dim), (dim, dim), (dim, dim), (ffn_dim, dim), (dim, ffn_dim)]


@dataclass(frozen=True)
class Floor:
    """Sustained times of one step's share, all its layers, in captured graphs.

    Attributes:
        products: the six FP8 products of each layer.
        attention: self-attention of each layer.
        both: the two interleaved layer by layer, the floor of a step.
        product_flops, attention_flops: operations of one replay.
        distinct: layers that have weights and cache of their own; the others reuse them.
    """

    products: Timing
    attention: Timing
    both: Timing
    product_flops: float
    attention_flops: float
    distinct: int

    def __str__(self) -> str:
        total = self.product_flops + self.attention_flops
        parts = (
            ("products", self.products, self.product_flops),
            ("attention", self.attention, self.attention_flops),
            ("interleaved", self.both, total),
        )
        return "\n".join(f"{name:12}{t}, {t.teraflops(flops):.0f} TFLOP/s" for name, t, flops in parts)


@torch.inference_mode()
def measure_floor(
    *,
    rows: int,
    heads: int,
    context: int,
    layers: int,
    tokens: int = 2992,
    dim: int = 7680,
    head_dim: int = 128,
    ffn_dim: int | None = None,
    backend: Backend = "auto",
    seconds: float = 4.0,
) -> Floor:
    """Measure the floor of a share of a step on the current GPU.

    Weights, activations and cache are random and fill FP8's range as quantised tensors do. The number of bits that
    toggle decides how much power the products draw, and so the clock.

    Args:
        rows: rows of the products (a sequence rank's share of the tokens, padding included).
        heads: heads of the attention.
        context: chunks attended to.
        layers: layers of the share.
        tokens: tokens of a chunk, the queries of the attention.
        dim, head_dim: the model's width and that of a head.
        ffn_dim: width inside the feed-forward; default: four times the model's.
        backend: of the attention.
        seconds: of each of the three measurements.
    """
    widths = product_widths(dim, ffn_dim or 4 * dim)
    weights_bytes = sum(out * inner for out, inner in widths)
    layer_bytes = weights_bytes + 2 * context * tokens * heads * head_dim
    free = torch.cuda.mem_get_info()[0]
    distinct = min(layers, int(0.8 * free / layer_bytes))
    if distinct == 0:
        raise ValueError(f"one layer needs {layer_bytes / 1e9:.1f} GB, the GPU has {free / 1e9:.1f} GB free")
    one = torch.ones((), device="cuda")
    ones = torch.ones(heads, device="cuda")
    weights = [[Quantised(full_range(out, inner), one / FP8_MAX) for out, inner in widths] for _ in range(distinct)]
    inputs = {inner: Quantised(full_range(rows, inner), one / FP8_MAX) for _, inner in widths}
    q = unit(tokens, heads, head_dim)
    keys, values = ([unit(context * tokens, heads, head_dim) for _ in range(distinct)] for _ in range(2))

    def products(layer: int, start: int, stop: int) -> None:
        for weight, (_, inner) in list(zip(weights[layer % distinct], widths, strict=True))[start:stop]:
            linear_fp8(inputs[inner], weight)

    def attention(layer: int) -> None:
        k, v = keys[layer % distinct], values[layer % distinct]
        attend(q, k, v, q_scale=ones, k_scale=ones, v_scale=ones, backend=backend)

    def interleaved(layer: int) -> None:
        products(layer, 0, 1)
        attention(layer)
        products(layer, 1, len(widths))

    def measure(work: Callable[[int], None]) -> Timing:
        return sustained(capture(lambda: list(map(work, range(layers)))), seconds)

    return Floor(
        products=measure(lambda layer: products(layer, 0, len(widths))),
        attention=measure(attention),
        both=measure(interleaved),
        product_flops=2.0 * rows * weights_bytes * layers,
        attention_flops=4.0 * tokens * context * tokens * heads * head_dim * layers,
        distinct=distinct,
    )


def full_range(*shape: int, deviation: float = FP8_MAX / 5) -> Tensor:
    """FP8 normal deviates; by default their outliers reach the largest number, as those of a quantised tensor do."""
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16).mul_(deviation).clamp_(-FP8_MAX, FP8_MAX).to(FP8)


def unit(*shape: int) -> Tensor:
    """FP8 normal deviates of variance one: queries and keys behind their RMSNorm, logits of variance one."""
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16).to(FP8)


def main() -> None:
    parser = argparse.ArgumentParser(description="Sustained floor of a share of a 57B step on this GPU.")
    parser.add_argument("--rows", type=int, default=1008)
    parser.add_argument("--heads", type=int, default=20)
    parser.add_argument("--context", type=int, default=9)
    parser.add_argument("--layers", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    arguments = parser.parse_args()
    print(torch.cuda.get_device_name(), f"torch {torch.__version__}", arguments)
    print(measure_floor(**vars(arguments)))


if __name__ == "__main__":
    main()
