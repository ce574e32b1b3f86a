"""attend: every backend of this machine against exact attention of the values it was given."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.attention import attend, available_backends
from kernels.attention_triton import Tiling, attend_triton
from kernels.bench.timing import capture
from kernels.fp8 import FP8, FP8_MAX

CUDA = torch.cuda.is_available()
# The interpreter has no bfloat16 products.
FLOATS = [torch.float16, torch.bfloat16] if CUDA else [torch.float32, torch.float16]
# Queries, keys, head_dim: a last block of keys that is not full; full blocks; fewer keys than a block; on a GPU also so
# many keys and, below, heads that FlashAttention-3 gets two launches.
SIZES = (
    [(300, 1000, 128), (256, 1024, 64), (40, 72, 16), (2992, 9000, 128)]
    if CUDA
    else [(50, 77, 16), (32, 64, 128), (5, 3, 16)]
)
# The tensor memory accelerator is Hopper's; the interpreter runs its code as any other.
LOADS = [True, False] if not CUDA or torch.cuda.get_device_capability() >= (9, 0) else [False]


def exact(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = q.double(), k.double(), v.double()
    weights = torch.softmax(torch.einsum("qhd,khd->hqk", q, k) / q.shape[2] ** 0.5, -1)
    return torch.einsum("hqk,khd->qhd", weights, v)


def error(got: Tensor, expected: Tensor) -> float:
    return ((got.double() - expected).norm() / expected.norm()).item()


def random(device: str, tokens: int, keys: int, heads: int, head_dim: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    heads = 12 if keys > 8192 else heads
    return [torch.randn(n, heads, head_dim, generator=generator).to(device) for n in (tokens, keys, keys)]


def quantised(tensors: list[Tensor]) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """FP8 tensors, their scales a head, and the values they stand for."""
    scales = [x.abs().amax((0, 2)) / FP8_MAX for x in tensors]
    stored = [(x / s[:, None]).to(FP8) for x, s in zip(tensors, scales, strict=True)]
    return stored, scales, [x.float() * s[:, None] for x, s in zip(stored, scales, strict=True)]


def transposed(v: Tensor) -> Tensor:
    """v with its key axis contiguous in memory; each channel starts at a multiple of 16 keys."""
    keys, heads, head_dim = v.shape
    room = torch.zeros(heads, head_dim, -(-keys // 16) * 16, dtype=torch.uint8, device=v.device).view(FP8)
    room[:, :, :keys].view(torch.uint8).copy_(v.view(torch.uint8).permute(1, 2, 0))
    return room[:, :, :keys].permute(2, 0, 1)


def scaled(scales: list[Tensor]) -> dict[str, Tensor]:
    return dict(zip(("q_scale", "k_scale", "v_scale"), scales, strict=True))


@pytest.mark.parametrize(("tokens", "keys", "head_dim"), SIZES)
@pytest.mark.parametrize("dtype", FLOATS)
def test_float_backends_are_exact(device: str, dtype: torch.dtype, tokens: int, keys: int, head_dim: int) -> None:
    q, k, v = (x.to(dtype) for x in random(device, tokens, keys, 3, head_dim))
    backends = [name for name in available_backends(device) if dtype in (torch.bfloat16, torch.float16) or name in
                ("triton", "reference")]  # fmt: skip
    if dtype == torch.float16:
        backends = [name for name in backends if name != "fa3"]  # its build has bfloat16 and FP8 only
    assert "triton" in backends and "reference" in backends
    for backend in backends:
        got = attend(q, k, v, backend=backend)
        assert got.dtype == dtype and got.shape == q.shape
        limit = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}[dtype]
        assert error(got, exact(q, k, v)) < limit, backend


@pytest.mark.parametrize(("tokens", "keys", "head_dim"), SIZES)
def test_fp8_backends_add_only_the_rounding_of_probabilities(
    device: str, tokens: int, keys: int, head_dim: int
) -> None:
    stored, scales, values = quantised(random(device, tokens, keys, 3, head_dim))
    expected = exact(*values)
    for backend in [name for name in available_backends(device) if name in ("fa3", "triton", "reference")]:
        got = attend(*stored, **scaled(scales), backend=backend)
        assert got.dtype == torch.bfloat16
        assert error(got, expected) < (0.005 if backend == "reference" else 0.035), backend
        if backend == "fa3":  # its two launches become branches of a graph
            captured: list[Tensor] = []
            graph = capture(lambda kept=captured: kept.append(attend(*stored, **scaled(scales), backend="fa3")))
            graph.replay()
            assert torch.equal(captured[-1], got)


@pytest.mark.parametrize("tma", LOADS)
@pytest.mark.parametrize("columns", [True, False])
@pytest.mark.parametrize("keys", [32, 77, 200])
def test_ways_of_loading(device: str, keys: int, columns: bool, tma: bool) -> None:
    """V by rows and with its key axis contiguous, by threads and by the accelerator; one block of keys to seven."""
    (q, k, v), scales, values = quantised(random(device, 70, keys, 2, 64))
    v = transposed(v) if columns else v
    got = attend_triton(q, k, v, *scales, tiling=Tiling(64, 32, 4, 2, tma=tma))
    assert error(got, exact(*values)) < 0.035


@pytest.mark.parametrize("spread", [0.1, 8.0])
def test_flat_and_peaked_rows(device: str, spread: float) -> None:
    q, k, v = random(device, 64, 200, 1, 128)
    (q, k, v), scales, values = quantised([q * spread, k, v])
    for x in (v, transposed(v)):
        for backend in ("triton", "reference"):
            got = attend(q, k, x, **scaled(scales), backend=backend)
            assert error(got, exact(*values)) < 0.035, backend


def test_views_of_a_wider_matrix(device: str) -> None:
    """q, k and v side by side in one row, as a fused projection writes them."""
    heads, head_dim = 2, 32
    qkv = torch.randn(40, 3 * heads * head_dim, generator=torch.Generator().manual_seed(0)).to(device, torch.float16)
    q, k, v = (x.unflatten(1, (heads, head_dim)) for x in qkv.chunk(3, 1))
    assert error(attend(q, k, v, backend="triton"), exact(q, k, v)) < 2e-3


def test_large_logits_stay_finite(device: str) -> None:
    q, k, v = random(device, 20, 40, 2, 16)
    q, k, v = (100 * q).half(), (100 * k).half(), v.half()
    assert error(attend(q, k, v, backend="triton"), exact(q, k, v)) < 5e-3


def test_auto_is_a_backend_of_this_machine(device: str) -> None:
    q, k, v = (x.half() for x in random(device, 8, 24, 2, 16))
    with torch.inference_mode():
        assert error(attend(q, k, v), exact(q, k, v)) < 2e-3


def test_gradients_flow_through_the_reference(device: str) -> None:
    q, k, v = (x.requires_grad_() for x in random(device, 8, 24, 2, 16))
    attend(q, k, v).sum().backward()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in (q, k, v))


def test_misfits_are_named(device: str) -> None:
    q, k, v = random(device, 8, 24, 2, 16)
    with pytest.raises(ValueError, match="fit together"):
        attend(q, k[:, :1], v)
    with pytest.raises(ValueError, match="one dtype"):
        attend(q, k.half(), v)
    with pytest.raises(ValueError, match="scales belong"):
        attend(q, k, v, q_scale=torch.ones(2, device=device))
    with pytest.raises(ValueError, match="needs q_scale"):
        attend(*(x.to(FP8) for x in (q, k, v)))
    with pytest.raises(ValueError, match="head dimensions"):
        attend(*(x.repeat(1, 1, 3) for x in (q, k, v)), backend="triton")
    with pytest.raises(ValueError, match="fa3"):
        attend(q, k, v, backend="fa3")
