"""The artefact measure finds planted artefacts and forgives what a good model does."""

import pytest
import torch
import torch.nn.functional as F

from characters.drawing import Identities
from characters.evaluation.artefacts import score_maps, texture_against, window_score
from characters.evaluation.checks import moving_parts
from characters.evaluation.planted import STRENGTHS, plant, validate
from characters.evaluation.subjects import draw, heldout_identities, heldout_motion

ROWS, FRAMES = 6, 3


@pytest.fixture(scope="module")
def scene() -> tuple[Identities, torch.Tensor, torch.Tensor, list[torch.Tensor], torch.Tensor]:
    """identities, motion, mouth, truths (asked for, and as a reader sees it), and soft, noisy frames a little off."""
    identities = heldout_identities(ROWS, seed=5, device="cpu")
    generator = torch.Generator().manual_seed(0)
    motion = heldout_motion(ROWS, 6, seed=5, device="cpu")[:, ::8]
    mouth = torch.rand(ROWS, FRAMES, 5, generator=generator) * 0.8
    off = 0.1 * torch.randn(ROWS, 1, 12, generator=generator)
    said = (mouth + 0.05 * torch.randn(ROWS, 1, 5, generator=generator)).clamp(0, 1)
    read = motion + off + 0.03 * torch.randn(motion.shape, generator=generator)
    truths = [draw(identities, *controls).float() / 255 for controls in ((motion, mouth), (read, said))]
    made = (draw(identities, motion + off, said).float() / 255).flatten(0, 1)
    soft = F.avg_pool2d(F.pad(made, (1,) * 4, mode="replicate"), 3, 1)
    made = torch.lerp(made, soft, 0.7) + 0.008 * torch.randn(made.shape, generator=generator)
    return identities, motion, mouth, truths, made.clamp(0, 1).view_as(truths[0])


def test_detection_and_false_alarms(scene, capsys):
    identities, motion, mouth, truths, made = scene
    flat, moving = [t.flatten(0, 1) for t in truths], moving_parts(identities, motion)

    def judge(frames: torch.Tensor) -> torch.Tensor:
        return window_score(score_maps(frames.flatten(0, 1), flat, moving).unflatten(0, (ROWS, FRAMES)))

    false, found = validate(made, judge, identities, motion, mouth)
    with capsys.disabled():
        print(f"\nfalse alarms {false:.2f}")
        for d in found:
            print(f"{d.kind:>14} {d.strength:4g}: found {d.rate:.2f}, median score {d.median_score:.2f}")
    assert false == 0
    for d in found:
        _, noticeable, plain = STRENGTHS[d.kind]
        if d.strength == plain:
            assert d.rate == 1, d
        if d.strength == noticeable:
            assert d.rate >= 0.8, d


def test_one_bad_frame_in_many_is_no_artefact():
    maps = torch.zeros(1, 10, 20, 20)
    maps[:, :2, 5, 5] = 3
    assert window_score(maps).item() == 0
    maps[:, 2:5, 6, 6] = 3  # it sways
    assert window_score(maps).item() == 3


def test_a_tile_may_agree_with_any_of_the_truths(scene):
    truth = scene[3][0].flatten(0, 1)[:4]
    other = truth.roll(20, -1)
    assert score_maps(other, [truth]).max() > 1
    assert score_maps(other, [truth, other]).max() < 0.1


def test_foreign_texture_is_seen_without_a_truth(scene):
    identities, motion, mouth, _, made = scene
    portrait = draw(identities, 0 * motion[:, :1], 0 * mouth[:, :1])[:, 0].repeat_interleave(FRAMES, 0)
    spoilt = plant("checkerboard", 0.4, made, identities, motion, mouth, seed=1)
    before, after = (
        window_score(texture_against(x.flatten(0, 1), portrait).unflatten(0, (ROWS, FRAMES))) for x in (made, spoilt)
    )
    assert (after > before + 0.5).float().mean() > 0.6
