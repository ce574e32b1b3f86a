import numpy as np

from characters.evaluation.heldout import load_heldout
from characters.training.sentences import HELD_OUT, sentences


def test_clips_are_complete_and_aligned() -> None:
    clips = load_heldout()
    assert len(clips) == 64
    assert {c.family for c in clips} == {"hibari", "espeak", "flite-slt", "flite-rms"}
    assert {c.text for c in clips} == set(HELD_OUT)
    for clip in clips:
        assert clip.pcm.dtype == clip.mouth.dtype == np.float32
        assert clip.mouth.shape == (len(clip.pcm) // 1000, 5)
        assert len(clip.mouth) % 4 == 0
        assert np.abs(clip.pcm[:7000]).max() < 1e-3
        assert np.abs(clip.pcm[-7000:]).max() < 1e-3
        assert clip.mouth[:5, 0].max() < 0.02
        assert clip.mouth[:, 0].max() > 0.5


def test_mouth_opens_with_the_sound() -> None:
    """Opening follows loudness best at no shift, for every voice."""
    for family in {c.family for c in load_heldout()}:
        best = np.zeros(5)
        for clip in (c for c in load_heldout() if c.family == family):
            loud = np.log(np.sqrt((clip.pcm.reshape(-1, 1000) ** 2).mean(1)) + 1e-3)
            for i, shift in enumerate(range(-2, 3)):
                best[i] += np.corrcoef(np.roll(loud, shift)[3:-3], clip.mouth[3:-3, 0])[0, 1]
        assert np.argmax(best) == 2, (family, best)


def test_training_never_says_a_held_out_sentence() -> None:
    text = sentences(np.random.default_rng(3))
    said = {next(text) for _ in range(5000)}
    assert not said & set(HELD_OUT)
    assert len(said) > 2500
