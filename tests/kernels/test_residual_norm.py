"""residual_norm: the reference against the formulas it replaces, the kernel against the reference."""

import pytest
import torch
import torch.nn.functional as F

from kernels.residual_norm import residual_norm, residual_norm_reference, residual_norm_triton
from tests.kernels.compare import assert_same_fp8


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_reference_is_the_formula_of_a_block(dtype):
    """Bit for bit, over a batch."""
    x, branch = torch.randn(2, 2, 5, 24, dtype=dtype)
    gate, scale, shift = torch.randn(3, 2, 1, 24, dtype=dtype)
    weight, bias = torch.randn(2, 24, dtype=dtype)
    before = x.clone()

    new, h = residual_norm_reference(x, branch, gate, scale=scale, shift=shift)
    assert torch.equal(new, x + gate * branch)
    assert torch.equal(h, F.layer_norm(new, (24,), eps=1e-6) * (1 + scale) + shift)

    new, h = residual_norm_reference(x, branch, weight=weight, bias=bias)
    assert torch.equal(new, x + branch)
    assert torch.equal(h, F.layer_norm(new, (24,), weight, bias, 1e-6))

    new, h = residual_norm_reference(x)
    assert new is x
    assert torch.equal(h, F.layer_norm(x, (24,), eps=1e-6))
    assert torch.equal(x, before)


def test_reference_has_gradients():
    inputs = [torch.randn(2, 3, 8, requires_grad=True) for _ in range(2)]
    vectors = [torch.randn(2, 1, 8, requires_grad=True) for _ in range(3)]
    new, h = residual_norm(*inputs, vectors[0], scale=vectors[1], shift=vectors[2])
    (new.sum() + h.square().sum()).backward()
    assert all(x.grad is not None and x.grad.abs().sum() > 0 for x in inputs + vectors)


# Each width is compiled for each combination below; programs have several rows each.
SHAPES = [(300, 7680)] if torch.cuda.is_available() else [(3, 240)]


@pytest.mark.parametrize("rows, dim", SHAPES)
@pytest.mark.parametrize("parts", ["norm", "branch", "gate", "affine", "modulation", "all"])
@pytest.mark.parametrize("to", [None, "static", "rows"])
def test_kernel_equals_reference(device, rows, dim, parts, to):
    generator = torch.Generator().manual_seed(rows + dim)

    def numbers(*shape):
        return torch.randn(*shape, generator=generator).bfloat16().to(device)

    x = numbers(rows, dim) + 3
    used = {
        "branch": numbers(rows, dim),
        "gate": numbers(dim),
        "weight": numbers(dim),
        "bias": numbers(dim),
        "scale": numbers(dim).float(),  # modulation may be kept more exactly than the stream
        "shift": numbers(dim).float(),
    }
    wanted = {
        "norm": [],
        "branch": ["branch"],
        "gate": ["branch", "gate"],
        "affine": ["branch", "weight", "bias"],
        "modulation": ["scale", "shift"],
        "all": list(used),
    }[parts]
    used = {name: used[name] for name in wanted}
    to = torch.tensor(0.01, device=device) if to == "static" else to

    # In float32 the reference computes as the kernel does.
    new, h = residual_norm_reference(x.float(), **{name: y.float() for name, y in used.items()}, to=to)
    got_new, got_h = residual_norm_triton(x, **used, to=to)

    assert got_new is x
    assert torch.equal(x, new.bfloat16())
    if to is None:
        assert got_h.dtype == torch.bfloat16
        torch.testing.assert_close(got_h.float(), h, rtol=2**-8, atol=1e-5)
    else:
        torch.testing.assert_close(got_h.scale, h.scale, rtol=1e-5, atol=0)
        assert_same_fp8(got_h.data, h.data)


def test_kernel_saturates(device):
    x = torch.randn(2, 64, device=device).bfloat16()
    _, h = residual_norm_triton(x, to=torch.tensor(1e-4, device=device))
    assert (h.data.float().abs() == 448).float().mean() > 0.9
