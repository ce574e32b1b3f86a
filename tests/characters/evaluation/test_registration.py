"""The fitted pose is the one that was drawn, within bounds, and what no pose explains stays an artefact."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from characters.chunk import MOTION_CHANNELS, MOUTH_CHANNELS
from characters.drawing import Identities
from characters.evaluation import checks
from characters.evaluation.artefacts import score_maps, window_score
from characters.evaluation.planted import plant
from characters.evaluation.registration import BOUNDS, register
from characters.evaluation.rollout import to_bytes
from characters.evaluation.subjects import draw, heldout_identities, heldout_motion

ROWS = 3  # a person, another, an animal
COLUMNS = [MOTION_CHANNELS.index(name) for name in BOUNDS]
LIMIT = torch.tensor(list(BOUNDS.values()))


@pytest.fixture(scope="module")
def scene() -> tuple[Identities, Tensor, Tensor, Tensor]:
    """identities, commanded motion and mouth of one frame each, and how the head is off: two thirds of the bounds."""
    identities = heldout_identities(ROWS, seed=1, device="cpu")
    motion = 0.3 * heldout_motion(ROWS, 1, seed=1, device="cpu")[:, :1]
    signs = torch.tensor([[1.0, -1, 1, -1, 1, -1], [-1, 1, 1, 1, -1, -1], [1, 1, -1, 1, -1, 1]])[:, None]
    off = torch.zeros_like(motion)
    off[..., COLUMNS] = 0.66 * signs * LIMIT
    return identities, motion, torch.full((ROWS, 1, len(MOUTH_CHANNELS)), 0.2), off


def blind(frames: Tensor) -> SimpleNamespace:
    """A reader of no help: it sees nothing but a face at rest."""
    rows, n = frames.shape[:2]
    return SimpleNamespace(
        motion=torch.zeros(rows, n, len(MOTION_CHANNELS)), mouth=torch.zeros(rows, n, len(MOUTH_CHANNELS))
    )


def test_finds_the_pose_that_was_drawn(scene):
    identities, motion, mouth, off = scene
    fitted = register(draw(identities, motion + off, mouth), identities, motion, [(motion, mouth)])
    left = ((fitted - motion - off)[..., COLUMNS] / LIMIT).abs()
    assert left.max() < 0.25
    assert left.mean() < 0.05
    others = [i for i in range(len(MOTION_CHANNELS)) if i not in COLUMNS]
    assert torch.equal(fitted[..., others], motion[..., others])


def test_stays_within_the_bounds(scene):
    identities, motion, mouth, off = scene
    far = draw(identities, motion + 3 * off, mouth)
    fitted = register(far, identities, motion, [(motion, mouth), (motion + 3 * off, mouth)])
    assert ((fitted - motion)[..., COLUMNS].abs() <= LIMIT + 1e-5).all()


def test_a_head_elsewhere_is_no_artefact_but_what_is_planted_or_far_off_is(scene):
    identities, motion, mouth, off = scene
    bench = SimpleNamespace(read=blind)
    moved = motion + off
    frames = draw(identities, moved, mouth)
    asked = draw(identities, motion, mouth)
    unregistered = score_maps(frames.flatten(0, 1), [asked.flatten(0, 1)]).unflatten(0, frames.shape[:2])
    assert (window_score(unregistered) >= 1).any()
    assert (checks.judge(bench, identities, motion, mouth, frames) < 1).all()
    spoilt = to_bytes(plant("ghost edge", 0.6, frames.float() / 255, identities, moved, mouth))
    assert (checks.judge(bench, identities, motion, mouth, spoilt) >= 1).all()
    assert (checks.judge(bench, identities, motion, mouth, frames.roll(16, -1)) >= 1).all()
