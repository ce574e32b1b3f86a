import numpy as np
import pytest
import torch

from characters.chunk import MEL_FRAMES_PER_CHUNK, SAMPLES_PER_CHUNK
from characters.generate.hearing import SILENCE, LogMel, dequantise, log_mel, quantise, windows


@pytest.fixture
def pcm() -> np.ndarray:
    rng = np.random.default_rng(0)
    return (rng.standard_normal(24_000) * np.sin(np.arange(24_000) / 3000) ** 2 * 0.3).astype(np.float32)


@pytest.mark.parametrize("sizes", [[1, 249, 251, 7, 800], [4000], [333], [0, 24_000]])
def test_streaming_equals_whole(pcm: np.ndarray, sizes: list[int]) -> None:
    stream, parts, position, turn = LogMel(), [], 0, 0
    while position < len(pcm):
        size = sizes[turn % len(sizes)]
        parts.append(stream.push(pcm[position : position + size]))
        position, turn = position + size, turn + 1
    np.testing.assert_allclose(np.concatenate(parts), log_mel(pcm), atol=2e-6)


def test_reset_starts_a_new_signal(pcm: np.ndarray) -> None:
    stream = LogMel()
    stream.push(pcm[:12_345])
    stream.reset()
    np.testing.assert_allclose(stream.push(pcm), log_mel(pcm), atol=2e-6)


def test_future_samples_do_not_change_past_frames(pcm: np.ndarray) -> None:
    changed = pcm.copy()
    changed[40 * 250 :] = 0.5
    before, after = log_mel(pcm), log_mel(changed)
    np.testing.assert_array_equal(before[:40], after[:40])
    assert np.abs(before[40] - after[40]).max() > 0.01


def test_a_chunk_has_16_frames_and_silence_its_constant() -> None:
    mel = log_mel(np.zeros(SAMPLES_PER_CHUNK, np.float32))
    assert mel.shape == (MEL_FRAMES_PER_CHUNK, 80)
    np.testing.assert_allclose(mel, SILENCE, atol=1e-6)


def test_windows_hold_past_own_and_ahead() -> None:
    mel = torch.arange(100.0)[:, None].expand(100, 80)
    got = windows(mel, 0, 7)
    assert got.shape == (7, 48, 80)
    assert (got[0, :24] == SILENCE).all()
    assert got[0, 24:, 0].tolist() == list(range(24))
    assert got[2, :, 0].tolist() == list(range(8, 56))
    assert got[5, :, 5].tolist()[:44] == list(range(56, 100))
    assert (got[5, 44:] == SILENCE).all()
    assert torch.equal(windows(mel, 2, 1)[0], got[2])
    assert (windows(mel, -9, 2) == SILENCE).all()
    assert (windows(mel, 40, 2) == SILENCE).all()


def test_quantisation_is_fine_and_keeps_silence(pcm: np.ndarray) -> None:
    mel = log_mel(pcm)
    back = dequantise(torch.from_numpy(quantise(mel))).numpy()
    assert np.abs(back - mel).max() < 0.0105
    assert quantise(np.array([SILENCE])).item() == 0
    assert dequantise(torch.zeros(1, dtype=torch.uint8)).item() == pytest.approx(SILENCE)
