"""The reader's geometry; how well it reads is measured by `characters evaluate`."""

import torch

from characters.drawing import HEIGHT, WIDTH, identity_vector, sample_identities
from characters.evaluation.reader import FrameReader, crop


def test_it_fits_the_budget():
    assert sum(p.numel() for p in FrameReader().parameters()) * 2 < 1.05e6


def test_shapes_and_that_rows_do_not_meet():
    torch.manual_seed(0)
    reader = FrameReader().eval()
    frames = torch.rand(3, 3, HEIGHT, WIDTH)
    reading = reader(frames)
    traits = identity_vector(sample_identities(1, seed=0)).shape[1]
    assert [tuple(x.shape) for x in reading] == [(3, 5), (3, 12), (3, traits), (3, 2), (3, 2)]
    torch.testing.assert_close(reader(frames[1:2]).mouth, reading.mouth[1:2], atol=1e-5, rtol=1e-4)


def test_a_crop_at_a_whole_pixel_copies():
    frames = torch.rand(2, 3, HEIGHT, WIDTH)
    window = crop(frames, torch.tensor([[88.0, 136.0]]).expand(2, 2), (40, 56))
    torch.testing.assert_close(window, frames[..., 116:156, 60:116], atol=1e-4, rtol=0)


def test_traits_have_unit_scale():
    reader = FrameReader()
    vectors = identity_vector(sample_identities(500, seed=1))
    reader.fit_traits(vectors)
    normal = reader.normalise(vectors)
    assert normal.mean(0).abs().max() < 1e-4
    assert (normal.std(0) - 1).abs().max() < 1e-3
