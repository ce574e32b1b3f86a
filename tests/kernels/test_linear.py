"""linear_fp8: the same tests on a CPU (reference) and on a GPU with FP8 tensor cores."""

from __future__ import annotations

import pytest
import torch

from kernels.fp8 import FP8, Quantised, quantise_rows
from kernels.linear import linear_fp8

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def _operands(
    rows: int, inner: int, out: int, per_row: bool
) -> tuple[torch.Tensor, torch.Tensor, Quantised, Quantised]:
    generator = torch.Generator(DEVICE).manual_seed(0)
    x = torch.randn(rows, inner, device=DEVICE, generator=generator)
    w = torch.randn(out, inner, device=DEVICE, generator=generator) / inner**0.5
    if per_row:
        return x, w, quantise_rows(x), quantise_rows(w)
    scales = (x.abs().max() / 448, w.abs().max() / 448)
    return x, w, *(Quantised((t / s).to(FP8), s) for t, s in zip((x, w), scales, strict=True))


@pytest.mark.parametrize("rows", [1, 37, 64])
@pytest.mark.parametrize("per_row", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
def test_product_matches_the_values_it_was_given(rows: int, per_row: bool, with_bias: bool) -> None:
    """Exact up to bf16 output and the tensor core's accumulation."""
    _, _, x, weight = _operands(rows, 96, 80, per_row)
    bias = torch.randn(80, device=DEVICE, dtype=torch.bfloat16) if with_bias else None
    expected = (x.data.double() * x.scale.double()) @ (weight.data.double() * weight.scale.double()).t()
    expected = expected if bias is None else expected + bias.double()
    got = linear_fp8(x, weight, bias)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.double(), expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("per_row", [False, True])
def test_product_is_near_the_float_one(per_row: bool) -> None:
    """What quantisation costs: e4m3 keeps 3 bits, so a long sum is off by about 4 % of its spread."""
    x, w, x8, w8 = _operands(64, 512, 128, per_row)
    exact = x @ w.t()
    error = (linear_fp8(x8, w8).float() - exact).pow(2).mean().sqrt() / exact.pow(2).mean().sqrt()
    assert error < 0.05


def test_scale_vector_of_the_weight_may_lie_either_way() -> None:
    _, _, x, weight = _operands(16, 64, 48, per_row=True)
    lying = Quantised(weight.data, weight.scale.reshape(1, -1))
    assert torch.equal(linear_fp8(x, weight), linear_fp8(x, lying))


def test_misfits_are_named() -> None:
    _, _, x, weight = _operands(16, 64, 48, per_row=False)
    with pytest.raises(ValueError, match="does not match weight"):
        linear_fp8(Quantised(x.data[:, :32].contiguous(), x.scale), weight)
    with pytest.raises(ValueError, match="row-major FP8"):
        linear_fp8(Quantised(x.data.float(), x.scale), weight)
    with pytest.raises(ValueError, match="row-major FP8"):
        linear_fp8(x, Quantised(weight.data.t().contiguous().t(), weight.scale))
    with pytest.raises(ValueError, match="both scalars"):
        linear_fp8(Quantised(x.data, x.scale.expand(16, 1)), weight)
    with pytest.raises(ValueError, match="divide by 16"):
        linear_fp8(x, Quantised(weight.data[:40], weight.scale))
    with pytest.raises(ValueError, match="float32"):
        linear_fp8(Quantised(x.data, x.scale.double()), weight)
    with pytest.raises(ValueError, match="bias"):
        linear_fp8(x, weight, torch.zeros(3, device=DEVICE))
