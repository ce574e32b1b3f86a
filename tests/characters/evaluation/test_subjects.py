"""Held-out characters and speech tracks."""

import numpy as np
import torch

from characters.evaluation.heldout import HeldoutClip
from characters.evaluation.subjects import Speech, heldout_identities, heldout_motion, neutral_portraits
from characters.generate.hearing import SILENCE


def clip(frames: int, seed: int) -> HeldoutClip:
    random = np.random.default_rng(seed)
    pcm = random.standard_normal(frames * 1000).astype(np.float32) * 0.1
    return HeldoutClip(f"test-{seed:02}", "test", "", pcm, random.random((frames, 5)).astype(np.float32))


def test_a_third_are_animals_and_robots_and_all_differ():
    identities = heldout_identities(12, seed=0, device="cpu")
    assert torch.bincount(identities["kind"].long()).tolist() == [8, 2, 2]
    assert len(identities["skin"].unique(dim=0)) == 12
    assert neutral_portraits(heldout_identities(1, seed=0, device="cpu")).shape == (1, 3, 272, 176)


def test_motion_is_seeded():
    torch.testing.assert_close(
        heldout_motion(3, 2, seed=1, device="cpu")[:2], heldout_motion(2, 2, seed=1, device="cpu")
    )


def test_clips_are_padded_with_silence():
    speech = Speech.of([clip(8, 0), clip(16, 1)])
    assert (speech.chunks, speech.frames) == (4, [8, 16])
    assert (speech.mel[0, 32:] == SILENCE).all()
    assert (speech.mel[0, :32] > SILENCE).any(1).all()
    assert (speech.mouth[0, 8:] == 0).all()
    assert Speech.of([clip(16, 1)], limit=2).frames == [8]


def test_tracks_keep_sound_and_mouth_together():
    clips = [clip(8, 0), clip(12, 1)]
    speech = Speech.tracks(clips, 2, 40, seed=0)
    sounding = (speech.mel > SILENCE).any(2).unflatten(1, (-1, 4)).any(2)
    moving = (speech.mouth > 0).any(2)
    assert torch.equal(sounding, moving)
    assert 0.2 < sounding.float().mean() < 0.8
    assert not torch.equal(speech.mouth[0], speech.mouth[1])
