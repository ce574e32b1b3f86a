"""narrow_conv: the kernel against the reference, the reference against what it replaces."""

import pytest
import torch
import torch.nn.functional as F

from kernels.narrow_conv import narrow_conv, narrow_conv_reference, narrow_conv_triton


def operands(device, times, dtype):
    generator = torch.Generator().manual_seed(times)
    x = torch.randn(4, 30, 38, 16, generator=generator)
    weight = torch.randn(3, 16, times, 3, 3, generator=generator) / (16 * 9 * times) ** 0.5
    return x.to(device, dtype), weight.to(device, dtype)


def test_reference_is_a_convolution():
    x, weight = operands("cpu", 1, torch.float32)
    expected = F.conv2d(x.permute(0, 3, 1, 2), weight[:, :, 0], padding=1).permute(0, 2, 3, 1)
    torch.testing.assert_close(narrow_conv(x, weight, bordered=False), expected)
    torch.testing.assert_close(narrow_conv(x, weight, bordered=True), expected[:, 1:-1, 1:-1])


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("bordered", [False, True])
def test_kernel_equals_reference(device, times, bordered):
    x, weight = operands(device, times, torch.float16)
    expected = narrow_conv_reference(x.float(), weight.float(), bordered=bordered)
    with torch.inference_mode():
        got = narrow_conv_triton(x, weight, bordered=bordered)
    assert got.shape == expected.shape and got.dtype == torch.float16 and got.is_contiguous()
    assert (got.float() - expected).norm() < 2e-3 * expected.norm()
