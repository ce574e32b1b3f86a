"""scatter_rows: the kernel against the reference, and what neither may touch."""

import pytest
import torch

from kernels.fp8 import FP8, quantise
from kernels.scatter_rows import scatter_rows_reference, scatter_rows_triton
from tests.kernels.compare import assert_same_fp8

SHAPES = [(1, 133, 240), (3, 112, 2560)] if torch.cuda.is_available() else [(1, 9, 240), (3, 3, 640)]


@pytest.mark.parametrize("ranks, rows, width", SHAPES)
@pytest.mark.parametrize("fp8", [True, False])
def test_kernel_equals_reference(device, ranks, rows, width, fp8):
    o = torch.randn(ranks * rows, width, generator=torch.Generator().manual_seed(rows)).bfloat16().to(device)
    scale = torch.tensor(0.004, device=device) if fp8 else None  # saturates some
    dtype = FP8 if fp8 else torch.bfloat16
    for rank in range(ranks):
        got, expected = ([torch.ones(rows, ranks * width, device=device).to(dtype) for _ in range(ranks)] for _ in "12")
        scatter_rows_triton(o, scale, got, rank * width)
        scatter_rows_reference(o, scale, expected, rank * width)
        for a, b in zip(got, expected, strict=True):
            if fp8:
                assert_same_fp8(a, b)
            else:
                assert torch.equal(a, b)
            others = a.float().unflatten(1, (ranks, width))[:, [r for r in range(ranks) if r != rank]]
            assert (others == 1).all()


def test_ranks_together_give_whole_rows():
    """Every rank scatters its heads; each then holds all columns of its rows."""
    ranks, rows, width = 3, 4, 16
    whole = torch.randn(ranks * rows, ranks * width)
    scale = torch.tensor(0.1)
    targets = [torch.zeros(rows, ranks * width).to(FP8) for _ in range(ranks)]
    for rank in range(ranks):
        scatter_rows_reference(whole[:, rank * width : (rank + 1) * width], scale, targets, rank * width)
    assert_same_fp8(torch.cat([t.view(torch.uint8) for t in targets]).view(FP8), quantise(whole, scale).data, share=0)
