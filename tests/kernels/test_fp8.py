"""FP8 and its scales; no kernel involved."""

import torch

from kernels.fp8 import FP8, FP8_MAX, dequantise, quantise, quantise_rows, store


def test_what_is_out_of_range_saturates():
    x = torch.tensor([-1e6, -449.0, 0.0, 448.0, 1e6])
    assert quantise(x, torch.tensor(1.0)).data.float().tolist() == [-448.0, -448.0, 0.0, 448.0, 448.0]


def test_scale_is_a_divisor():
    x = torch.tensor([1.0, -2.0, 3.5])
    quantised = quantise(x, torch.tensor(0.5))
    assert quantised.data.float().tolist() == [2.0, -4.0, 7.0]
    assert torch.equal(dequantise(quantised), x)


def test_rows_use_the_whole_range():
    x = torch.randn(5, 7, 33) * torch.logspace(-6, 6, 7)[:, None]
    quantised = quantise_rows(x)
    assert quantised.scale.shape == (5, 7, 1)
    assert (quantised.data.float().abs().amax(-1) == FP8_MAX).all()
    assert ((dequantise(quantised) - x).abs() <= x.abs() / 16 + quantised.scale * 2**-10).all()


def test_a_row_of_zeros_stays_zero():
    quantised = quantise_rows(torch.zeros(2, 8))
    assert (dequantise(quantised) == 0).all()
    assert (quantised.scale > 0).all()


def test_store_does_what_precision_says():
    x = torch.randn(3, 8)
    scale = torch.tensor(0.1)
    assert store(x, None) is x
    assert store(x, scale).data.dtype == FP8 and store(x, scale).scale is scale
    assert torch.equal(store(x, "rows").scale, quantise_rows(x).scale)
