"""join_frames and split_frames: the kernels against the references, the references against what they say."""

import pytest
import torch
import torch.nn.functional as F

from kernels.frames import (
    join_frames_reference,
    join_frames_triton,
    split_frames_reference,
    split_frames_triton,
)


def numbers(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).half()


def test_references_are_concatenation_and_doubling():
    x = numbers(4, 3, 5, 16)
    before = torch.cat((torch.zeros_like(x[:1]), x[:-1]))
    assert torch.equal(join_frames_reference(x, 2, step=1, delta=-1), torch.cat((x, before), -1))
    assert torch.equal(join_frames_reference(x, 2, step=2, delta=1), torch.cat((x[::2], x[1::2]), -1))
    grown = torch.stack(x.chunk(2, -1), 1).flatten(0, 1)
    doubled = F.interpolate(grown.permute(0, 3, 1, 2), scale_factor=2).permute(0, 2, 3, 1)
    assert torch.equal(split_frames_reference(x, 2, skip=3), doubled[3:])


@pytest.mark.parametrize("step, delta", [(1, -1), (2, 1), (1, 1)])
def test_join_kernel_equals_reference(device, step, delta):
    x, count = numbers(4, 20, 22, 16).to(device), 1 if (step, delta) == (1, 1) else 2
    with torch.inference_mode():
        got = join_frames_triton(x, count, step=step, delta=delta)
    assert torch.equal(got, join_frames_reference(x, count, step=step, delta=delta))


@pytest.mark.parametrize("count, skip", [(1, 0), (2, 0), (2, 3)])
def test_split_kernel_equals_reference(device, count, skip):
    x = numbers(3, 11, 14, 16 * count).to(device)
    with torch.inference_mode():
        got = split_frames_triton(x, count, skip=skip)
    assert torch.equal(got, split_frames_reference(x, count, skip=skip))
