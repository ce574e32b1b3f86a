from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import av
import numpy as np
import pytest

import characters.speech
from characters.cli.render import MAX_TEXT, check_text
from characters.errors import UserError
from characters.media.audio import open_audio
from characters.speech import Speech
from tests.characters.media.make import tone, write_audio

RunFixture = Callable[..., object]


@pytest.fixture
def beeps(tmp_path: Path) -> Path:
    """Two seconds: silence, and a beep from 1.0 to 1.5 s."""
    samples = np.zeros((2, 88_200))
    samples[:, 44_100:66_150] = tone(0.5, 44_100, 2)
    return write_audio(tmp_path / "beeps.wav", samples, 44_100, "pcm_s16le", "stereo")


def brightness(path: Path) -> np.ndarray:
    with av.open(str(path)) as container:
        return np.array([f.to_ndarray(format="gray").mean() for f in container.decode(video=0)])


def test_a_recording(run: RunFixture, pip: Path, beeps: Path, tmp_path: Path) -> None:
    result = run("render", "--character", "pip", "--audio", beeps, "--out", tmp_path / "v.mp4")
    assert result.code == 0, result.err
    assert "12 chunks, 2.0 s of video" in result.out
    for word in ("dit", "decode", "encode", "median", "p99", "real-time factor", str(tmp_path / "v.mp4")):
        assert word in result.out
    bright = brightness(tmp_path / "v.mp4") > 60
    assert bright.tolist() == [False] * 24 + [True] * 12 + [False] * 12
    heard = np.concatenate(list(open_audio(tmp_path / "v.mp4").blocks()))
    loud = np.flatnonzero(np.abs(heard) > 0.05)
    assert loud[0] == pytest.approx(24_000, abs=30) and loud[-1] == pytest.approx(36_000, abs=30)


class FakeVoice:
    made = 0

    def speak(self, text: str, *, speed: float = 1.0, pitch: float = 0.0) -> Iterator[Speech]:
        assert speed == pytest.approx(1.1)
        for sentence in text.split("."):
            if sentence.strip() and sentence.isascii():
                FakeVoice.made += 1
                yield Speech(np.full(5_000, 0.5, np.float32))


def test_a_text_has_silence_around_it(
    run: RunFixture, pip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(characters.speech, "open_voice", lambda engine: FakeVoice())
    result = run("render", "--character", "pip", "--text", "One. Two.", "--out", tmp_path / "v.mp4")
    assert result.code == 0, result.err
    bright = np.flatnonzero(brightness(tmp_path / "v.mp4") > 60)
    assert bright[0] == 7 and bright[-1] == 17  # 0.3 s, then 10,000 samples
    assert "8 chunks" in result.out
    nothing = run("render", "--character", "pip", "--text", "你好", "--out", tmp_path / "w.mp4")
    assert nothing.code == 2 and "found nothing" in nothing.err
    assert not (tmp_path / "w.mp4").exists()


def test_a_text_is_spoken_as_it_is_needed(pip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from characters.character import Voice
    from characters.cli.render import spoken_chunks

    monkeypatch.setattr(characters.speech, "open_voice", lambda engine: FakeVoice())
    FakeVoice.made = 0
    chunks, _ = spoken_chunks("One. Two. Three. Four.", Voice(speed=1.1))
    next(chunks)
    next(chunks)
    assert FakeVoice.made == 1


def test_texts_with_nothing_to_say() -> None:
    assert check_text("  Hi \n") == "Hi"
    assert len(check_text("a" * MAX_TEXT)) == MAX_TEXT
    for text, message in [("", "empty"), (" \n", "empty"), ("...!?", "nothing in it to say"), ("a" * 20_001, "20,001")]:
        with pytest.raises(UserError, match=message):
            check_text(text)


def test_bad_input_is_one_line_and_2_and_leaves_the_earlier_file(
    run: RunFixture, pip: Path, beeps: Path, tmp_path: Path
) -> None:
    out = tmp_path / "v.mp4"
    out.write_bytes(b"earlier")
    (tmp_path / "text.wav").write_text("not a sound\n" * 100)
    good = {"--character": "pip", "--audio": beeps, "--out": out}
    for change, message in [
        ({"--character": "popp"}, "no character named 'popp'"),
        ({"--audio": tmp_path / "gone.wav"}, "does not exist"),
        ({"--audio": tmp_path / "text.wav"}, "not a recording"),
        ({"--out": tmp_path / "v.webm"}, "must be named .mp4"),
        ({"--out": "/proc/v.mp4"}, "cannot write"),
        ({"--model": "huge"}, "there is no model 'huge'"),
        ({"--seed": "-1"}, "--seed"),
        ({"--text": "both"}, "either --audio or --text"),
        ({"--audio": None}, "either --audio or --text"),
        ({"--audio": None, "--text": " "}, "--text is empty"),
    ]:
        args = [a for key, value in (good | change).items() if value is not None for a in (key, value)]
        result = run("render", *args)
        assert result.code == 2 and message in result.err and result.err.count("\n") == 1, result.err
        assert out.read_bytes() == b"earlier"
    assert not list(tmp_path.glob(".v.*"))


def test_an_output_that_is_the_recording(run: RunFixture, pip: Path, beeps: Path, tmp_path: Path) -> None:
    video = tmp_path / "v.mp4"
    assert run("render", "-c", "pip", "--audio", beeps, "-o", video).code == 0
    before = video.read_bytes()
    result = run("render", "-c", "pip", "--audio", video, "-o", video)
    assert result.code == 2 and "recording itself" in result.err and video.read_bytes() == before
    assert run("render", "-c", "pip", "--audio", video, "-o", tmp_path / "w.mp4").code == 0  # a video file as sound


@pytest.mark.parametrize(("number", "code", "says"), [(signal.SIGINT, 130, "interrupted\n"), (signal.SIGTERM, 143, "")])
def test_stopped_in_the_middle(pip: Path, tmp_path: Path, number: signal.Signals, code: int, says: str) -> None:
    long = write_audio(tmp_path / "long.wav", tone(60.0, 24_000), 24_000, "pcm_s16le")
    (tmp_path / "v.mp4").write_bytes(b"earlier")
    program = subprocess.Popen(
        [sys.executable, "-m", "tests.characters.cli.fake_stream", "render"]
        + ["--character", "pip", "--audio", str(long), "--out", str(tmp_path / "v.mp4")],
        env=os.environ | {"FAKE_DELAY": "0.1"},
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # a shell's & would ignore it
    )
    deadline = time.monotonic() + 60
    while not any(p.stat().st_size for p in tmp_path.glob(".v.*.part")):
        assert program.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(0.3)
    program.send_signal(number)
    _, said = program.communicate(timeout=30)
    assert program.returncode == code and said == says
    assert (tmp_path / "v.mp4").read_bytes() == b"earlier"
    assert not list(tmp_path.glob(".v.*"))
