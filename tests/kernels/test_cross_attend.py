"""cross_attend: the reference against the layers that it replaces, the kernel against the reference."""

import pytest
import torch
import torch.nn.functional as F

import kernels.cross_attend
from kernels.cross_attend import cross_attend, cross_attend_reference, cross_attend_triton
from kernels.fp8 import dequantise
from tests.kernels.compare import steps

# The interpreter has no bfloat16 products.
DTYPE = torch.bfloat16 if torch.cuda.is_available() else torch.float16


def operands(device, rows, keys, heads, head_dim):
    generator = torch.Generator().manual_seed(rows + keys)

    def numbers(*shape):
        return torch.randn(*shape, generator=generator).to(device, DTYPE)

    # Logits of some size, rows of very different norms.
    q = numbers(rows, heads * head_dim) * torch.logspace(-2, 2, rows, device=device)[:, None]
    norm = 1 + 0.5 * numbers(heads * head_dim)
    return q.to(DTYPE), norm, 2 * numbers(keys, heads, head_dim), numbers(keys, heads, head_dim)


@pytest.mark.parametrize("batch", [(), (2,)])
def test_reference_is_norm_and_attention(batch):
    q = torch.randn(*batch, 5, 32, requires_grad=True)
    norm = torch.randn(32, requires_grad=True)
    k, v = torch.randn(2, *batch, 7, 2, 16)
    normed = F.rms_norm(q, (32,), norm, 1e-6).unflatten(-1, (2, 16))
    weights = torch.einsum("...qhd,...khd->...hqk", normed, k).div(4).softmax(-1)
    expected = torch.einsum("...hqk,...khd->...qhd", weights, v).flatten(-2)
    got = cross_attend(q, norm, k, v)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    got.sum().backward()
    assert all(x.grad.abs().sum() > 0 for x in (q, norm))


SHAPES = [(1008, 64, 60, 128), (500, 200, 60, 128), (70, 1, 12, 64)] if torch.cuda.is_available() else []


@pytest.mark.parametrize("rows, keys, heads, head_dim", [*SHAPES, (70, 5, 3, 16), (70, 150, 2, 32)])
@pytest.mark.parametrize("to", [None, "static", "rows"])
def test_kernel_equals_reference(device, rows, keys, heads, head_dim, to):
    given = operands(device, rows, keys, heads, head_dim)
    to = torch.tensor(0.01, device=device) if to == "static" else to
    expected = cross_attend_reference(*(x.float() for x in given), to=to)
    got = cross_attend_triton(*given, to=to)
    if to is None:
        assert got.dtype == DTYPE
        # q and the weights are rounded before they are multiplied.
        assert (got.float() - expected).norm() < 0.01 * expected.norm()
        return
    torch.testing.assert_close(got.scale, expected.scale, rtol=0.05, atol=0)
    assert got.data.dtype == expected.data.dtype and got.data.shape == expected.data.shape
    exact = dequantise(expected)
    assert (dequantise(got) - exact).norm() < 0.03 * exact.norm()
    if isinstance(to, torch.Tensor):
        assert (steps(got.data, expected.data) > 1).float().mean() < 0.05


def test_kernel_saturates(device):
    given = operands(device, 9, 5, 3, 16)
    out = cross_attend_triton(*given, to=torch.tensor(1e-4, device=device))
    assert (out.data.float().abs() == 448).float().mean() > 0.8


def test_a_grid_of_several_blocks_of_keys_is_one_softmax(device, monkeypatch):
    given = operands(device, 9, 100, 2, 16)
    whole = cross_attend_triton(*given)
    monkeypatch.setattr(kernels.cross_attend, "KEYS", 16)
    torch.testing.assert_close(cross_attend_triton(*given), whole, rtol=2**-6, atol=2**-8)


@pytest.mark.parametrize("keys", [5, 40])
@pytest.mark.parametrize("frames, rows", [(3, 70), (9, 1024)] if torch.cuda.is_available() else [(3, 70)])
@pytest.mark.parametrize("static", [False, True])
def test_rows_of_a_frame_attend_to_its_own_keys(device, frames, rows, keys, static):
    q, norm, k, v = operands(device, frames * rows, frames * keys, 3, 16)
    k, v = (x.unflatten(0, (frames, keys)) for x in (k, v))
    alone = [
        cross_attend_reference(*(x.float() for x in (part, norm, *kv)))
        for part, *kv in zip(q.split(rows), k, v, strict=True)
    ]
    expected = torch.cat(alone)
    assert torch.allclose(cross_attend_reference(q.float(), norm.float(), k.float(), v.float()), expected, atol=1e-6)
    scale = torch.tensor(0.01, device=device) if static else None
    got = cross_attend_triton(q, norm, k, v, to=scale)
    got = dequantise(got) if static else got.float()
    assert (got - expected).norm() < (0.03 if static else 0.01) * expected.norm()
