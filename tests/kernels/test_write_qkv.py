"""write_qkv and anchor_sink: the kernels against the references, and what neither may touch."""

import pytest
import torch
import torch.nn.functional as F

from kernels.fp8 import FP8
from kernels.write_qkv import (
    ProjectedQkv,
    QkvScales,
    QkvTarget,
    anchor_sink_reference,
    anchor_sink_triton,
    rotate_pairs,
    write_qkv_reference,
    write_qkv_triton,
)
from tests.kernels.compare import assert_same_fp8

UNTOUCHED = 7.0


def _targets(device, *, ranks, rows, ring_rows, heads, head_dim, dtype, transposed):
    def filled(*shape):
        return torch.full(shape, UNTOUCHED, device=device).to(dtype)

    values = (heads, head_dim, ring_rows) if transposed else (ring_rows, heads, head_dim)
    return [
        QkvTarget(
            q=filled(ranks * rows, heads, head_dim),
            keys=filled(ring_rows, heads, head_dim),
            values=filled(*values),
            values_transposed=transposed,
        )
        for _ in range(ranks)
    ]


def _inputs(device, rows, heads, head_dim):
    generator = torch.Generator().manual_seed(rows + heads)
    dim = heads * head_dim
    angles = 6 * torch.rand(rows, head_dim // 2, generator=generator)
    return ProjectedQkv(
        torch.randn(rows, 3 * dim, generator=generator).bfloat16().to(device),
        *(torch.randn(dim, generator=generator).bfloat16().to(device) for _ in range(2)),
        angles.cos().to(device),
        angles.sin().to(device),
    )


def test_reference_is_norm_rotate_quantise(device):
    """Against the definition, with one rank and every row in place."""
    rows, heads, head_dim = 6, 3, 8
    x = _inputs(device, rows, heads, head_dim)
    (target,) = _targets(
        device, ranks=1, rows=rows, ring_rows=12, heads=heads, head_dim=head_dim, dtype=torch.float32, transposed=True
    )
    cursor = torch.tensor(rows, device=device)
    write_qkv_reference(x, targets=[target], cursor=cursor, first_row=0, tokens=rows, eps=1e-5)
    q, k, v = x.qkv.float().chunk(3, 1)
    turn = torch.complex(x.cos, x.sin)[:, None]
    for got, part, weight in ((target.q, q, x.norm_q), (target.keys[rows:], k, x.norm_k)):
        normed = F.rms_norm(part, (heads * head_dim,), weight.float(), 1e-5).unflatten(1, (heads, head_dim))
        rotated = torch.view_as_real(torch.view_as_complex(normed.unflatten(2, (-1, 2)).contiguous()) * turn).flatten(2)
        torch.testing.assert_close(got, rotated)
    assert torch.equal(target.values[:, :, rows:].permute(2, 0, 1), v.unflatten(1, (heads, head_dim)))
    assert (target.keys[:rows] == UNTOUCHED).all() and (target.values[:, :, :rows] == UNTOUCHED).all()


# Ranks, rows a rank, tokens of a chunk, all heads, head_dim, slot of a ring of three: one whole chunk; ragged rows;
# padding on the last rank. The interpreter takes long over a program, so the sizes that fill tiles are a GPU's.
SHAPES = [(1, 3, 3, 3, 8, 1), (2, 2, 4, 4, 8, 2), (3, 2, 5, 6, 8, 0)]
if torch.cuda.is_available():
    SHAPES = [(1, 300, 300, 15, 128, 1), (3, 304, 896, 60, 128, 0), (3, 101, 303, 6, 16, 2)]


@pytest.mark.parametrize("ranks, rows, tokens, heads, head_dim, slot", SHAPES)
@pytest.mark.parametrize("fp8", [True, False])
@pytest.mark.parametrize("transposed", [True, False])
def test_kernel_equals_reference(device, ranks, rows, tokens, heads, head_dim, slot, fp8, transposed):
    """Every rank of a group writes its rows."""
    shape = {
        "ranks": ranks,
        "rows": rows,
        "ring_rows": -(-3 * tokens // 16) * 16,
        "heads": heads // ranks,
        "head_dim": head_dim,
        "dtype": FP8 if fp8 else torch.bfloat16,
        "transposed": transposed,
    }
    got, expected = _targets(device, **shape), _targets(device, **shape)
    # q saturates for some heads, k and v don't.
    scales = [torch.linspace(a, b, heads, device=device) for a, b in ((1e-3, 0.02), (0.01, 0.03), (0.01, 0.05))]
    for rank in range(ranks):
        inputs = _inputs(device, rows, heads, head_dim)
        place = {
            "cursor": torch.tensor(slot * tokens, device=device),
            "first_row": rank * rows,
            "tokens": tokens,
            "scales": QkvScales(*scales) if fp8 else None,
        }
        write_qkv_reference(inputs, targets=expected, **place)
        write_qkv_triton(inputs, targets=got, **place)
    ring = torch.arange(shape["ring_rows"], device=device)
    outside = (ring < slot * tokens) | (ring >= (slot + 1) * tokens)
    for a, b in zip(got, expected, strict=True):
        for name in ("q", "keys", "values"):
            if fp8:
                assert_same_fp8(getattr(a, name), getattr(b, name), share=0.02)
            else:
                torch.testing.assert_close(getattr(a, name), getattr(b, name), rtol=2**-7, atol=1e-3)
        values = a.values.float().permute(2, 0, 1) if transposed else a.values.float()
        assert (a.keys.float()[outside] == UNTOUCHED).all()
        assert (values[outside] == UNTOUCHED).all()


@pytest.mark.parametrize("fp8", [True, False])
@pytest.mark.parametrize("heads, head_dim, pairs", [(3, 16, 4), (5, 8, 2), (2, 32, 11), (1, 16, 8)])
def test_anchoring_rewrites_the_first_pairs_alone(device, fp8, heads, head_dim, pairs):
    layers, tokens = 2, 3
    generator = torch.Generator().manual_seed(heads)
    sinks = torch.randn(layers, 2 * tokens, heads, head_dim, generator=generator).bfloat16().to(device)
    sink = sinks[:, tokens:]
    angles = (6 * torch.rand(tokens, head_dim // 2, generator=generator)).to(device)
    # The first pairs of whole tables, as a cache keeps them.
    cos, sin = angles.cos()[:, :pairs], angles.sin()[:, :pairs]
    scale = torch.linspace(0.004, 0.02, layers * heads, device=device).view(layers, heads) if fp8 else None
    rings = [
        torch.full((layers, 3 * tokens, heads, head_dim), UNTOUCHED, device=device).to(FP8 if fp8 else torch.bfloat16)
        for _ in range(2)
    ]
    anchor_sink_triton(sink, cos, sin, rings[0][:, :tokens], scale)
    anchor_sink_reference(sink, cos, sin, rings[1][:, :tokens], scale)
    if fp8:
        assert_same_fp8(*rings)
    else:
        torch.testing.assert_close(*rings, rtol=2**-7, atol=1e-3)
    assert (rings[0][:, tokens:].float() == UNTOUCHED).all()
    assert (rings[0][..., 2 * pairs :].float() == UNTOUCHED).all()


def test_anchoring_equals_a_fresh_rotation():
    """Space was rotated when the sink was written; only time is left to do."""
    sink = torch.randn(1, 4, 2, 16)
    old, new = torch.rand(4, 8), torch.rand(4, 8)
    new[:, 3:] = old[:, 3:]
    ring = rotate_pairs(sink, old.cos(), old.sin())
    anchor_sink_reference(sink, new.cos()[:, :3], new.sin()[:, :3], ring)
    torch.testing.assert_close(ring, rotate_pairs(sink, new.cos(), new.sin()))
