from pathlib import Path

import numpy as np
import pytest
import torch

from characters.generate.hearing import SILENCE, log_mel
from characters.speech import open_voice
from characters.training import speech_corpus
from characters.training.align import Aligner
from characters.training.augment import augment_mel
from characters.training.speech_corpus import FAMILIES, build


@pytest.mark.system
def test_corpus_layout_and_repeatability(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speech_corpus, "ALIGNED", 20)
    first, second = (np.load(build(tmp_path / name, minutes=0.6, seed=5)) for name in ("a", "b"))
    for key in ("mel", "mouth", "utterances"):
        np.testing.assert_array_equal(first[key], second[key])
    mel, mouth, table = first["mel"], first["mouth"], first["utterances"]
    assert mel.dtype == np.uint8
    assert mouth.dtype == np.float16
    assert table.dtype == np.int32
    assert mel.shape == (4 * len(mouth), 80)
    assert mouth.shape[1] == 5
    assert (table[:, 1] % 4 == 0).all()
    np.testing.assert_array_equal(np.cumsum(table[:, 1])[:-1], table[1:, 0])
    assert table[-1, :2].sum() == len(mouth)
    assert FAMILIES.index("flite") not in table[:, 2]
    for start, frames, family in table:
        if FAMILIES[family] == "silence":
            assert not mouth[start : start + frames].any()


def test_alignment_only_moves_borders() -> None:
    examples = [next(open_voice("hibari").speak(t)) for t in ("Bob made my mother a pie.", "We were there, maybe.")]
    refined = Aligner(examples).refine(examples[0])
    assert refined.pcm is examples[0].pcm
    assert [p.symbol for p in refined.phonemes] == [p.symbol for p in examples[0].phonemes]
    assert refined.phonemes[0].start == 0
    assert refined.phonemes[-1].end == examples[0].phonemes[-1].end
    for a, b in zip(refined.phonemes, refined.phonemes[1:], strict=False):
        assert a.start <= a.end == b.start


def test_augmentation_keeps_shape_floor_and_stillness() -> None:
    torch.manual_seed(0)
    speech = torch.from_numpy(log_mel(next(open_voice("hibari").speak("Hello there.")).pcm))[None, :48]
    batch = speech.expand(16, 48, 80)
    out = augment_mel(batch)
    assert out.shape == batch.shape
    assert out.min() >= SILENCE
    assert (out - batch).abs().amax((1, 2)).gt(0.1).sum() > 8
    assert augment_mel(batch, 0.0) is batch
    assert augment_mel(batch.bfloat16()).dtype == torch.bfloat16
