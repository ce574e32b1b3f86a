"""Attention's output goes back to the ranks that own its rows: quantised, and written into their buffers."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from kernels.dispatch import common_alignment, jit, owned_pointers, saturate, takes_kernel, tl, triton
from kernels.fp8 import quantise

# Rows and columns of one program's tile, and its warps: four 16-byte loads a thread.
ROWS, COLUMNS, WARPS = 8, 512, 4


def scatter_rows(o: Tensor, scale: Tensor | None, targets: Sequence[Tensor], first_column: int) -> None:
    """Deal the rows of o to `targets`; each gets the columns that this rank's heads own.

    Target r receives rows [r * rows, (r + 1) * rows) of o at its columns [first_column, first_column + width). Targets
    may be memory of other GPUs, which must not be in use there; with one target this is plain quantisation.

    Args:
        o: [n * rows, width], output of attention over width / head_dim heads.
        scale: float32 scalar, of FP8 targets; None = targets have o's dtype.
        targets: n tensors [rows, dim], one a rank.
        first_column: the first column of this rank's heads.
    """
    (scatter_rows_triton if takes_kernel(o) else scatter_rows_reference)(o, scale, targets, first_column)


def scatter_rows_reference(o: Tensor, scale: Tensor | None, targets: Sequence[Tensor], first_column: int) -> None:
    """`scatter_rows` in plain PyTorch."""
    values = o if scale is None else quantise(o, scale).data
    for target, part in zip(targets, values.unflatten(0, (len(targets), -1)), strict=True):
        target[:, first_column : first_column + o.shape[1]] = part


def scatter_rows_triton(o: Tensor, scale: Tensor | None, targets: Sequence[Tensor], first_column: int) -> None:
    """`scatter_rows` by the kernel: contiguous tensors, targets on any GPU that this one can reach."""
    total, width = o.shape
    rows, dim = targets[0].shape
    item = targets[0].element_size()
    _scatter_rows[(triton.cdiv(total, ROWS), triton.cdiv(width, COLUMNS))](
        o,
        scale,
        tuple(targets),
        total,
        rows,
        first_column,
        WIDTH=width,
        DIM=dim,
        ALIGNMENT=common_alignment(first_column * item, dim * item, *(target.data_ptr() for target in targets)),
        ROWS=ROWS,
        COLUMNS=COLUMNS,
        num_warps=WARPS,
    )


@jit
def _scatter_rows(
    o,
    scale,
    targets,
    total,
    rows,
    first_column,
    WIDTH: tl.constexpr,
    DIM: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """One tile [ROWS, COLUMNS] a program; ALIGNMENT is in bytes, of every row of a tile in its target."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    column = (tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    inside = (row < total) & (column < WIDTH)
    value = tl.load(o + row.to(tl.int64) * WIDTH + column, inside, 0.0).to(tl.float32)
    if scale is not None:
        value *= 1.0 / tl.load(scale)
    owner = row // rows
    place = owned_pointers(targets, owner) + (row - owner * rows).to(tl.int64) * DIM + first_column + column
    place = tl.max_contiguous(tl.multiple_of(place, (1, ALIGNMENT)), (1, 8))
    tl.store(place, saturate(value, targets[0].dtype.element_ty), inside)
