"""Linear layer on FP8 operands: y = x W^T + b, accumulated in float32, scaled once at the end.

On GPUs with FP8 tensor cores (Ada, Hopper and later) the product is torch._scaled_mm: cuBLASLt when both scales are
scalars, a rowwise kernel when both are vectors. Elsewhere the reference multiplies the exact float32 values.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from kernels.fp8 import FP8, Quantised


def linear_fp8(
    x: Quantised, weight: Quantised, bias: Tensor | None = None, out_dtype: torch.dtype = torch.bfloat16
) -> Tensor:
    """Multiply quantised activations by a quantised weight.

    Args:
        x: data FP8 [rows, in], any number of rows; scale float32 [] or [rows, 1].
        weight: data FP8 [out, in]; scale float32 [] where x's is [], else one an output, [out, 1] or [1, out].
        bias: [out] in out_dtype.
        out_dtype: bfloat16 or float16; the reference also gives float32.

    Returns:
        [rows, out] in out_dtype.

    Raises:
        ValueError: shapes, dtypes or scales that the product isn't defined for.
    """
    _check(x, weight, bias)
    if has_fp8_products(x.data.device):
        return torch._scaled_mm(
            x.data,
            weight.data.t(),
            scale_a=x.scale,
            scale_b=weight.scale if weight.scale.dim() == 0 else weight.scale.reshape(1, -1),
            bias=bias,
            out_dtype=out_dtype,
            use_fast_accum=True,
        )
    return linear_fp8_reference(x, weight, bias, out_dtype)


def linear_fp8_reference(
    x: Quantised, weight: Quantised, bias: Tensor | None = None, out_dtype: torch.dtype = torch.bfloat16
) -> Tensor:
    """`linear_fp8` in plain PyTorch, float32 inside."""
    y = (x.data.float() @ weight.data.float().t()) * (x.scale * weight.scale.reshape(-1))
    return (y if bias is None else y + bias.float()).to(out_dtype)


@functools.cache
def has_fp8_products(device: torch.device) -> bool:
    """Whether a device multiplies FP8 in hardware: compute capability 8.9 and later."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)


def _check(x: Quantised, weight: Quantised, bias: Tensor | None) -> None:
    for name, tensor in (("x", x.data), ("weight", weight.data)):
        if tensor.dtype != FP8 or tensor.dim() != 2 or tensor.stride(1) != 1:
            raise ValueError(
                f"{name} must be a row-major FP8 matrix, got {tensor.dtype} of shape {tuple(tensor.shape)}, "
                f"strides {tensor.stride()}"
            )
    (rows, inner), (out, weight_inner) = x.data.shape, weight.data.shape
    if inner != weight_inner:
        raise ValueError(f"x [rows, {inner}] does not match weight [out, {weight_inner}]")
    if inner % 16 or out % 16:
        raise ValueError(f"FP8 products need widths that divide by 16, got weight [{out}, {inner}]")
    scales = tuple(x.scale.shape), tuple(weight.scale.shape)
    if scales not in (((), ()), ((rows, 1), (out, 1)), ((rows, 1), (1, out))):
        raise ValueError(
            f"scales must be both scalars, or one a row of x [{rows}, 1] and one an output [{out}, 1]; got {scales}"
        )
    if x.scale.dtype != torch.float32 or weight.scale.dtype != torch.float32:
        raise ValueError(f"scales must be float32, got {x.scale.dtype} and {weight.scale.dtype}")
    if bias is not None and bias.shape != (out,):
        raise ValueError(f"bias must have shape [{out}], got {tuple(bias.shape)}")
