"""gelu: the kernels against the reference."""

import pytest
import torch
import torch.nn.functional as F

from kernels.gelu import gelu, gelu_reference, gelu_triton
from tests.kernels.compare import assert_same_fp8


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_reference_is_gelu(dtype):
    x = torch.randn(2, 3, 40, dtype=dtype, requires_grad=True)
    y = gelu(x)
    assert torch.equal(y, F.gelu(x, approximate="tanh"))
    y.sum().backward()
    assert x.grad.abs().sum() > 0


# NumPy, under the interpreter, speaks of infinities that the formula means.
pytestmark = pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")

SHAPES = [(3, 1000), (37, 30720)] if torch.cuda.is_available() else [(3, 240), (3, 1000)]


@pytest.mark.parametrize("rows, width", SHAPES)
@pytest.mark.parametrize("to", [None, "static", "rows"])
def test_kernel_equals_reference(device, rows, width, to):
    x = (4 * torch.randn(rows, width, generator=torch.Generator().manual_seed(width))).bfloat16().to(device)
    to = torch.tensor(0.02, device=device) if to == "static" else to
    expected, got = gelu_reference(x.float(), to), gelu_triton(x, to)
    if to is None:
        torch.testing.assert_close(got.float(), expected, rtol=2**-8, atol=1e-6)
    else:
        torch.testing.assert_close(got.scale, expected.scale, rtol=1e-5, atol=0)
        assert_same_fp8(got.data, expected.data)


def test_kernel_at_the_ends(device):
    """Far from zero GELU is x or nothing; nothing overflows into NaN."""
    x = torch.tensor([[-3e38, -100.0, -20.0, -0.0, 0.0, 20.0, 100.0, 1e30]], device=device).bfloat16()
    y = gelu_triton(x)
    assert torch.equal(y, x.clamp_min(0))
    assert gelu_triton(x, torch.tensor(1.0, device=device)).data.float().tolist() == [[0, 0, 0, 0, 0, 20, 96, 448]]
