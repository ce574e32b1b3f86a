"""Recordings as people bring them: what is odd is mended, or said."""

from __future__ import annotations

import logging
import wave
from pathlib import Path

import av
import numpy as np
import pytest

from characters.media.audio import open_audio

SPEECH = (0.3 * np.sin(2 * np.pi * 220 * np.arange(24_000) / 24_000)).astype(np.float32)


def write(path: Path, samples: np.ndarray, codec: str = "pcm_f32le", rate: int = 24_000) -> Path:
    """float [channels, n] as a WAV file."""
    with av.open(str(path), "w") as container:
        layout = {1: "mono", 2: "stereo", 6: "5.1"}[len(samples)]
        stream = container.add_stream(codec, rate=rate, layout=layout)
        kind = {"pcm_f32le": "flt", "pcm_s16le": "s16"}[codec]
        data = np.ascontiguousarray(samples.T.reshape(1, -1))
        data = data.astype(np.float32) if kind == "flt" else (data * 32767).clip(-32768, 32767).astype(np.int16)
        frame = av.AudioFrame.from_ndarray(data, format=kind, layout=layout)
        frame.sample_rate = rate
        for part in (frame, None):
            container.mux(stream.encode(part))
    return path


def heard(path: Path, caplog: pytest.LogCaptureFixture) -> tuple[np.ndarray, str]:
    """The samples, and what the log says."""
    with caplog.at_level(logging.WARNING):
        pcm = np.concatenate(list(open_audio(path).blocks()))
    return pcm[: len(SPEECH)], caplog.text


def loudness(pcm: np.ndarray) -> float:
    return float(np.sqrt(np.square(pcm).mean()))


FIVE = np.zeros((6, len(SPEECH)), np.float32)
FIVE[2] = SPEECH  # the centre, where films put speech


@pytest.mark.parametrize(
    ("samples", "said"),
    [
        (np.stack((SPEECH, SPEECH)), ""),
        (np.stack((SPEECH, -SPEECH)), "cancel each other; only the left"),
        (np.stack((-0.5 * SPEECH, SPEECH * 0.55)), "cancel each other; only the right"),
        (np.stack((SPEECH, 0 * SPEECH)), "silent; only the left"),
        (np.stack((0 * SPEECH, SPEECH)), "silent; only the right"),
        ((SPEECH * 32_768)[None], "scale of 16-bit integers"),
        ((SPEECH * 2.0**31)[None], "scale of 32-bit integers"),
    ],
    ids=["plain", "inverted", "nearly inverted", "right silent", "left silent", "16-bit scale", "32-bit scale"],
)
def test_speech_is_heard_as_loud_as_it_is(samples: np.ndarray, said: str, tmp_path: Path, caplog) -> None:
    pcm, log = heard(write(tmp_path / "a.wav", samples), caplog)
    assert loudness(pcm) == pytest.approx(loudness(SPEECH), rel=0.5)
    assert np.abs(pcm).max() < 0.35
    assert said in log and bool(said) == bool(log)


def test_the_centre_of_a_film_is_heard(tmp_path: Path, caplog) -> None:
    pcm, log = heard(write(tmp_path / "a.wav", FIVE), caplog)
    assert loudness(pcm) > 0.2 * loudness(SPEECH) and not log


def test_peaks_above_full_scale_do_not_clip(tmp_path: Path, caplog) -> None:
    pcm, log = heard(write(tmp_path / "a.wav", 5 * SPEECH[None]), caplog)
    assert "times full scale" in log
    assert np.abs(pcm).max() <= 1.0 and (np.abs(pcm) > 0.999).mean() < 0.05


@pytest.mark.parametrize(
    ("samples", "said"),
    [
        (0 * SPEECH, "it is silent"),
        (0.02 * SPEECH, "very quiet"),
        ((10 * SPEECH).clip(-1, 1), "it is clipped"),
    ],
)
def test_what_cannot_be_mended_is_said(samples: np.ndarray, said: str, tmp_path: Path, caplog) -> None:
    _, log = heard(write(tmp_path / "a.wav", samples[None], "pcm_s16le"), caplog)
    assert said in log


def test_of_two_tracks_the_default_one_is_heard(tmp_path: Path, caplog) -> None:
    path = tmp_path / "a.mkv"
    with av.open(str(path), "w") as container:
        for number in range(2):
            stream = container.add_stream("pcm_s16le", rate=24_000, layout="mono")
            stream.disposition = av.stream.Disposition.default if number else av.stream.Disposition(0)
        for number, samples in enumerate((0 * SPEECH, SPEECH)):
            frame = av.AudioFrame.from_ndarray((samples * 32767).astype(np.int16)[None], format="s16", layout="mono")
            frame.sample_rate = 24_000
            stream = container.streams.audio[number]
            for part in (frame, None):
                container.mux(stream.encode(part))
    pcm, log = heard(path, caplog)
    assert loudness(pcm) == pytest.approx(loudness(SPEECH), rel=0.1)
    assert "2 audio tracks" in log


def test_a_plain_recording_costs_no_word(tmp_path: Path, caplog) -> None:
    path = tmp_path / "a.wav"
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes((SPEECH * 32767).astype("<i2").tobytes())
    _, log = heard(path, caplog)
    assert not log
