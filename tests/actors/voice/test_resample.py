from __future__ import annotations

import numpy as np
import pytest

from actors.voice.resample import Resampler, to_mono
from characters.errors import UserError


@pytest.mark.parametrize("rate", [8000, 24000, 44100, 48000])
def test_tones_keep_pitch_and_level_and_higher_ones_go(rate: int) -> None:
    time = np.arange(rate) / rate
    low = np.sin(2 * np.pi * 440 * time).astype(np.float32)
    out = Resampler(rate).push(low)
    assert abs(len(out) - 16000) <= 1
    spectrum = np.abs(np.fft.rfft(out[1000:15000] * np.hanning(14000)))
    assert abs(spectrum.argmax() * 16000 / 14000 - 440) < 2
    assert np.sqrt(2) * out[1000:15000].std() == pytest.approx(1, abs=0.02)
    if rate > 22000:
        high = np.sin(2 * np.pi * 11000 * time).astype(np.float32)
        assert Resampler(rate).push(high)[1000:].std() < 0.01


@pytest.mark.parametrize("rate", [24000, 44100, 48000])
def test_pieces_give_what_the_whole_gives(rate: int) -> None:
    rng = np.random.default_rng(0)
    sound = rng.standard_normal(rate).astype(np.float32)
    whole = Resampler(rate).push(sound)
    stream, pieces, start = Resampler(rate), [], 0
    while start < rate:
        size = int(rng.integers(0, 700))
        pieces.append(stream.push(sound[start : start + size]))
        start += size
    np.testing.assert_allclose(np.concatenate(pieces), whole, atol=1e-5)


def test_mono() -> None:
    np.testing.assert_allclose(to_mono(np.array([[16384, -16384], [32767, 32767]], np.int16)), [0, 1], atol=1e-4)
    np.testing.assert_array_equal(to_mono(np.array([np.nan, np.inf, 0.5])), np.float32([0, 1, 0.5]))
    for wrong in (np.zeros((2, 2, 2)), np.zeros(4, np.int32)):
        with pytest.raises(UserError, match="int16 or float"):
            to_mono(wrong)


@pytest.mark.parametrize("rate", [0, -1, 4000, 47999, 10**6])
def test_odd_rates_are_refused(rate: int) -> None:
    with pytest.raises(UserError, match="Hz cannot be heard"):
        Resampler(rate)
