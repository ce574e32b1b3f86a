"""Softmax attention of one chunk's queries over its whole context, by the fastest backend there is.

| backend | what | operands |
|---|---|---|
| fa3 | FlashAttention-3 (Shah et al. 2024), wheel fa3-fwd; Hopper | FP8, bfloat16 |
| cudnn | cuDNN through PyTorch; Ampere and later | bfloat16, float16 |
| flash | FlashAttention-2, package flash-attn; Ampere and later | bfloat16, float16 |
| triton | our own kernel, `attention_triton` | FP8, bfloat16, float16, float32 |
| reference | PyTorch's scaled_dot_product_attention, FP8 as float32; anywhere, with gradients | all |
"""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable
from typing import Literal, TypeAlias, get_args

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernels.attention_fa3 import attend_fa3
from kernels.fp8 import FP8

Backend: TypeAlias = Literal["auto", "fa3", "cudnn", "flash", "triton", "reference"]

# A Triton tile is a power of two wide, and no wider than registers allow.
TRITON_HEAD_DIMS = (16, 32, 64, 128)

_HALVES = (torch.bfloat16, torch.float16)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    q_scale: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    backend: Backend = "auto",
) -> Tensor:
    """Attend to all keys; logits are divided by the square root of head_dim.

    Args:
        q: [tokens, heads, head_dim], FP8 or floating point.
        k: [keys, heads, head_dim], q's dtype; the order of keys is free.
        v: [keys, heads, head_dim], q's dtype. A view whose key axis is contiguous (v.stride(0) == 1) suits `triton`
            and `reference` only: fa3-fwd is built without the kernels for it.
        q_scale, k_scale, v_scale: float32 [heads]; with FP8 operands, and only with them.
        backend: "auto" takes the first of fa3, cudnn, triton (FP8: fa3, triton) that serves these tensors, and the
            reference if none does. float32 always goes to the reference.

    Returns:
        [tokens, heads, head_dim]; bfloat16 for FP8 operands, else q's dtype.

    Raises:
        ValueError: operands that don't fit together, or that the backend doesn't take.
    """
    _check(q, k, v, (q_scale, k_scale, v_scale))
    if backend == "auto":
        backend = _choose(q, k, v)
    elif reason := _refusal(backend, q, k, v):
        raise ValueError(f"attention backend {backend} {reason}")
    match backend:
        case "fa3":
            return attend_fa3(q, k, v, q_scale, k_scale, v_scale)
        case "cudnn":
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                return _scaled_dot_product(q, k, v)
        case "flash":
            return _flash()(q[None], k[None], v[None])[0]
        case "triton":
            from kernels.attention_triton import attend_triton

            return attend_triton(q, k, v, q_scale, k_scale, v_scale)
    return attend_reference(q, k, v, q_scale, k_scale, v_scale)


def attend_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_scale: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> Tensor:
    """`attend` in plain PyTorch."""
    if q.dtype != FP8:
        return _scaled_dot_product(q, k, v)
    scaled = (x.float() * scale[:, None] for x, scale in ((q, q_scale), (k, k_scale), (v, v_scale)))
    return _scaled_dot_product(*scaled).to(torch.bfloat16)


def available_backends(device: torch.device | str) -> list[Backend]:
    """Backends that this machine can run on a device, best first."""
    device = torch.device(device)
    return [name for name in get_args(Backend) if name != "auto" and not _missing(name, device)]


def _scaled_dot_product(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    out = F.scaled_dot_product_attention(*(x.transpose(0, 1)[None] for x in (q, k, v)))
    return out[0].transpose(0, 1)


def _choose(q: Tensor, k: Tensor, v: Tensor) -> Backend:
    """The fastest backend that serves these tensors: fa3 leads on Hopper, then cuDNN, which has no FP8.

    float32 is left to the reference, because tensor cores would round its operands.
    """
    if q.is_cuda and q.dtype != torch.float32 and not torch.is_grad_enabled():
        for name in ("fa3", "cudnn", "triton"):
            if not _refusal(name, q, k, v):
                return name
    return "reference"


def _refusal(backend: Backend, q: Tensor, k: Tensor, v: Tensor) -> str | None:
    """Why a backend can't serve these tensors."""
    if reason := _missing(backend, q.device):
        return reason
    head_dim = q.shape[2]
    match backend:
        case "fa3" if q.dtype not in (FP8, torch.bfloat16) or any(x.stride(2) != 1 for x in (q, k, v)):
            strides = f"strides {q.stride()}, {k.stride()}, {v.stride()}"
            return f"takes FP8 and bfloat16 with contiguous channels, got {q.dtype} with {strides}"
        case "fa3" if head_dim % (16 if q.dtype == FP8 else 8) or head_dim > 256:
            return f"takes head dimensions up to 256 that divide by 16 (FP8) or 8, got {head_dim}"
        case "cudnn" | "flash" if q.dtype not in _HALVES or head_dim % 8:
            return f"takes bfloat16 and float16 in head dimensions that divide by 8, got {q.dtype} and {head_dim}"
        case "triton" if head_dim not in TRITON_HEAD_DIMS:
            return f"takes head dimensions {TRITON_HEAD_DIMS}, got {head_dim}"
    return None


@functools.cache
def _missing(backend: Backend, device: torch.device) -> str | None:
    """Why a backend can't run on a device at all."""
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)
    package = {"fa3": "fa3_fwd_interface", "flash": "flash_attn", "triton": "triton"}.get(backend)
    if package and importlib.util.find_spec(package) is None:
        return f"needs the package {package.removesuffix('_interface')}"
    if backend == "fa3" and capability[0] != 9:
        return f"needs a Hopper GPU (compute capability 9.x), got {device}"
    if backend in ("cudnn", "flash") and capability < (8, 0):
        return f"needs an Ampere GPU or later, got {device}"
    if backend == "triton" and device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return f"needs a GPU, got {device}"
    return None


@functools.cache
def _flash() -> Callable[..., Tensor]:
    from flash_attn import flash_attn_func

    return flash_attn_func


def _check(q: Tensor, k: Tensor, v: Tensor, scales: tuple[Tensor | None, ...]) -> None:
    if q.dim() != 3 or k.shape != v.shape or q.shape[1:] != k.shape[1:] or not k.numel():
        shapes = ", ".join(str(tuple(x.shape)) for x in (q, k, v))
        raise ValueError(
            f"q [tokens, heads, head_dim], k and v [keys, heads, head_dim] must fit together, got {shapes}"
        )
    if q.dtype != k.dtype or q.dtype != v.dtype:
        raise ValueError(f"q, k and v must have one dtype, got {q.dtype}, {k.dtype}, {v.dtype}")
    if q.dtype == FP8:
        if any(s is None or s.dtype != torch.float32 or s.shape != q.shape[1:2] for s in scales):
            raise ValueError(f"FP8 attention needs q_scale, k_scale and v_scale, each float32 [{q.shape[1]}]")
    elif any(s is not None for s in scales):
        raise ValueError(f"scales belong to FP8 operands, got {q.dtype}")
