"""Metrics on curves and images whose answers are known."""

import numpy as np
import pytest
import torch

from characters.evaluation.metrics import (
    Agreement,
    Movement,
    best_lag,
    colour_shift,
    correlation,
    events_per_minute,
    mouth_box_psnr,
    psnr,
    shifts_per_minute,
    within_chunks,
)


def speech_curve(frames: int = 240, seed: int = 0) -> np.ndarray:
    noise = np.random.default_rng(seed).standard_normal(frames + 4)
    return np.convolve(noise, np.ones(5) / 5, "valid")


def test_correlation_does_not_see_scale_and_offset_but_sees_noise():
    curve = speech_curve(4000)
    assert correlation(curve, 3 * curve + 7) == pytest.approx(1)
    assert correlation(curve, -curve) == pytest.approx(-1)
    noise = np.random.default_rng(1).standard_normal(len(curve)) * curve.std()
    assert correlation(curve, curve + noise) == pytest.approx(0.5**0.5, abs=0.02)


def test_correlation_with_a_still_curve_is_undefined():
    assert np.isnan(correlation(speech_curve(), np.zeros(240)))


@pytest.mark.parametrize("lag", [-3, -1, 0, 2, 4])
def test_a_late_video_has_a_positive_lag(lag):
    curve = speech_curve(300)
    assert best_lag(curve[10:250], curve[10 - lag : 250 - lag]) == (lag, pytest.approx(1))


def test_agreement_tells_24_hertz_from_6():
    truths = [speech_curve(seed=seed) for seed in range(5)]
    frozen = [np.repeat(t.reshape(-1, 4).mean(1), 4) for t in truths]
    found = Agreement.of(truths, frozen)
    assert found.chunk_mean == pytest.approx(1)
    assert np.isnan(found.within)
    assert found.mean > 0.8
    assert Agreement.of(truths, truths).within == pytest.approx(1)


def test_agreement_reports_the_common_lag_and_skips_still_clips():
    curves = [speech_curve(300, seed) for seed in range(4)]
    truths = [c[10:250] for c in curves] + [np.zeros(240)]
    found = Agreement.of(truths, [c[8:248] for c in curves] + [np.zeros(240)])
    assert (found.clips, found.lag_frames) == (4, 2)
    assert found.lag_ms == pytest.approx(83.33, abs=0.01)
    assert found.at_lag == pytest.approx(1)


def test_within_chunks_takes_the_mean_of_each_chunk_away():
    assert within_chunks(np.array([0.0, 1, 2, 3, 5, 5, 5, 9])).tolist() == [-1.5, -0.5, 0.5, 1.5, -1, -1, -1, 3]


def test_movement_in_silence_as_a_share_of_speech():
    speech = np.stack([speech_curve(seed=s) for s in range(3)])
    assert Movement.of(0.05 * speech + 2).share_of(Movement.of(speech)) == pytest.approx(0.05)
    jitter = 0.3 * speech
    jitter[:, ::2] *= -1  # as small, but it trembles
    assert Movement.of(jitter).share_of(Movement.of(speech)) > 0.3


def test_blinks_and_gaze_shifts_are_counted():
    blink = np.zeros((2, 24 * 30))
    blink[0, 100:105] = blink[0, 300:304] = blink[1, 50:53] = 1
    assert events_per_minute(blink, 0.5) == pytest.approx(3)
    gaze = np.zeros((1, 24 * 60))
    gaze[0, 200:] = 0.8
    gaze[0, 700:] = -0.5
    assert shifts_per_minute(gaze) == pytest.approx(2)


def test_psnr_of_a_known_error():
    truth = torch.rand(2, 3, 272, 176)
    assert psnr(truth + 0.1, truth) == pytest.approx(20, abs=1e-3)
    assert psnr(truth, truth) == pytest.approx(120, abs=0.1)


def test_mouth_box_psnr_looks_at_the_mouth_only():
    truth = torch.rand(1, 3, 272, 176)
    spoilt = truth.clone()
    spoilt[..., 160 - 20 : 160 + 20, 88 - 28 : 88 + 28] += 0.1
    assert mouth_box_psnr(spoilt, truth, torch.tensor([[88.0, 160.0]])) == pytest.approx(20, abs=0.05)
    assert mouth_box_psnr(spoilt, truth, torch.tensor([[88.0, 60.0]])) > 60


def test_colour_shift_sees_a_tint_and_not_a_moved_edge():
    truth = torch.full((2, 4, 3, 272, 176), 0.5)
    truth[..., 60:200, 50:120] = 0.9
    moved = truth.roll(3, -1)
    assert colour_shift(moved, truth).max() < 0.5
    tinted = truth.clone()
    tinted[1] += torch.tensor([6.0, 0, 0])[:, None, None] / 255
    shift = colour_shift(tinted, truth)
    assert shift[0] == pytest.approx(0, abs=1e-3)
    assert shift[1] == pytest.approx(2, abs=0.05)
