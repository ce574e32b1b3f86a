"""Sampling of identities."""

import torch

from characters.drawing import identity_vector, repeat_frames, sample_identities, select
from characters.drawing.identity import VISIBLE


def test_shapes_and_dtypes() -> None:
    cast = sample_identities(10, seed=0)
    for name, value in cast.items():
        assert value.dtype == torch.float32, name
        assert value.shape in ((10,), (10, 3)), name
        assert value.isfinite().all(), name


def test_same_seed_same_people() -> None:
    first, again, other = (sample_identities(10, seed=seed) for seed in (4, 4, 5))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["skin"], other["skin"])


def test_shares_of_the_kinds() -> None:
    kind = sample_identities(4000, seed=1)["kind"]
    shares = torch.stack([(kind == k).float().mean() for k in range(3)])
    torch.testing.assert_close(shares, torch.tensor([0.60, 0.25, 0.15]), atol=0.03, rtol=0)


def test_vector_is_finite_and_varies() -> None:
    vector = identity_vector(sample_identities(500, seed=2))
    assert vector.shape == (500, 40) and len(VISIBLE) < 40
    assert vector.isfinite().all() and (vector.std(0) > 1e-3).all()


def test_select_and_repeat() -> None:
    cast = sample_identities(4, seed=3)
    assert select(cast, 2)["skin"].shape == (1, 3)
    picked = select(cast, torch.tensor([3, 0]))
    torch.testing.assert_close(picked["mouth_y"], cast["mouth_y"][[3, 0]])
    repeated = repeat_frames(cast, 3)
    assert repeated["kind"].shape == (12,)
    torch.testing.assert_close(repeated["skin"][3:6], cast["skin"][1:2].expand(3, 3))
