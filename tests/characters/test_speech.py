import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from characters.errors import UserError
from characters.speech import espeak, flite, open_voice
from characters.speech.base import resample
from characters.speech.clauses import sentences

VOICES = ["hibari", "espeak:en-us", "flite:slt", "flite:rms"]
TEXT = "Hello there, Bob. My mother baked a big apple pie!"


@pytest.mark.parametrize("engine", VOICES)
def test_phonemes_touch_and_cover_the_sound(engine: str) -> None:
    pieces = list(open_voice(engine).speak(TEXT))
    assert len(pieces) == 2
    for speech in pieces:
        assert speech.pcm.dtype == np.float32
        assert 0.1 < np.abs(speech.pcm).max() <= 1.5
        seconds = len(speech.pcm) / 24_000
        assert speech.phonemes[0].start == 0
        assert speech.phonemes[-1].end == pytest.approx(seconds, abs=0.01)
        for a, b in zip(speech.phonemes, speech.phonemes[1:], strict=False):
            assert a.start <= a.end == b.start


@pytest.mark.parametrize("engine", VOICES)
def test_phonemes_are_where_the_sound_is(engine: str) -> None:
    """Vowels are louder than lip closures, and pauses are quiet."""
    loud: dict[str, list[float]] = {"vowel": [], "closure": [], "pause": []}
    for speech in open_voice(engine).speak("Papa put the pot upon the top. Bob became a big baboon."):
        for p in speech.phonemes:
            vowel = p.symbol.rstrip("ː") in (
                "ɑ",
                "ɐ",
                "ʌ",
                "u",
                "ɪ",
                "ə",
                "aa",
                "ax",
                "ah",
                "uw",
                "ih",
                "A",
                "eɪ",
                "ey",
            )
            kind = "pause" if not p.symbol else "closure" if p.symbol in "pb" else "vowel" if vowel else None
            # The middle half, clear of the borders.
            quarter = (p.end - p.start) / 4
            part = speech.pcm[int((p.start + quarter) * 24_000) : int((p.end - quarter) * 24_000)]
            if kind and len(part):
                loud[kind].append(10 * np.log10((part**2).mean() + 1e-9))
    assert np.median(loud["vowel"]) > np.median(loud["closure"]) + 6
    assert np.median(loud["vowel"]) > np.median(loud["pause"]) + 20


@pytest.mark.parametrize("engine", ["hibari", "espeak:en-us", "flite:slt"])
def test_speed_and_pitch(engine: str) -> None:
    def pitch(pcm: np.ndarray) -> float:
        """Hz, from the strongest autocorrelation between 70 and 400 Hz, median over loud frames."""
        found = []
        for frame in pcm[: len(pcm) // 1200 * 1200].reshape(-1, 1200):
            frame = frame - frame.mean()
            if np.abs(frame).max() > 0.15:
                correlation = np.correlate(frame, frame, "full")[1200 - 1 :]
                found.append(24_000 / (60 + np.argmax(correlation[60:340])))
        return float(np.median(found))

    voice, text = open_voice(engine), "Now we are all moving along the long yellow wall."
    plain, fast, high = (
        np.concatenate([s.pcm for s in voice.speak(text, **options)])
        for options in ({}, {"speed": 1.5}, {"pitch": 4.0})
    )
    assert 0.55 < len(fast) / len(plain) < 0.85
    assert 0.9 < len(high) / len(plain) < 1.1
    assert 1.12 < pitch(high) / pitch(plain) < 1.45


def test_hibari_repeats_itself() -> None:
    first, second = (next(open_voice("hibari").speak("The same again.")).pcm for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_espeak_stays_in_its_own_process() -> None:
    """A process that has spoken with espeak-ng has not mapped its library."""
    code = (
        "from characters.speech import open_voice\n"
        "assert len(next(open_voice('espeak').speak('Hello.')).pcm) > 5000\n"
        "assert 'espeak' not in open('/proc/self/maps').read()\n"
    )
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root, timeout=60)


def test_espeak_worker_can_be_closed_and_started_again() -> None:
    voice = espeak.EspeakVoice()
    first = next(voice.speak("Hello.")).pcm
    voice.close()
    np.testing.assert_array_equal(first, next(voice.speak("Hello.")).pcm)


@pytest.mark.parametrize("name", ["nobody", "hibari:emma", ""])
def test_unknown_engine(name: str) -> None:
    with pytest.raises(UserError, match="There is no voice"):
        open_voice(name)


@pytest.mark.parametrize(
    "name",
    ["flite:http://127.0.0.1:9/a.flitevox", "flite:/etc/passwd", "flite:../x", "flite:nobody", "flite:-o"]
    + ["espeak:/etc/passwd", "espeak:../x", "espeak:http://127.0.0.1:9/", "espeak:-w", "espeak:en\n"],
)
def test_a_voice_has_a_name_and_no_address(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*args: object, **kwargs: object) -> None:
        raise AssertionError("a program was started")

    monkeypatch.setattr(subprocess, "run", start)
    monkeypatch.setattr(subprocess, "Popen", start)
    with pytest.raises(UserError, match="voice"):
        list(open_voice(name).speak("Hello."))


@pytest.mark.parametrize("engine", ["flite", "espeak"])
def test_a_program_that_hangs_is_ended(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for program in ("flite", "espeak-ng"):
        (tmp_path / program).write_text("#!/bin/sh\nexec sleep 100\n")
        (tmp_path / program).chmod(0o755)
    (tmp_path / "worker.py").write_text("import time\ntime.sleep(100)\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for module in (flite, espeak):
        monkeypatch.setattr(module, "_SECONDS", 0.3)
    monkeypatch.setattr(espeak, "_WORKER", tmp_path / "worker.py")
    begin = time.monotonic()
    with pytest.raises(UserError, match=r"0\.3 s"):
        list(open_voice(engine).speak("Hello."))
    assert time.monotonic() - begin < 10


def test_unknown_espeak_voice() -> None:
    with pytest.raises(UserError, match="unknown voice 'nonsense'"):
        next(open_voice("espeak:nonsense").speak("Hello."))


@pytest.mark.parametrize("engine", ["espeak", "flite"])
def test_missing_program_names_the_package(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match="apt install"):
        open_voice(engine)


def test_sentences() -> None:
    assert sentences('One. "Two!" Three?\n\nFour... -- ') == ["One.", '"Two!"', "Three?", "Four..."]


@pytest.mark.parametrize("rate", [8000, 16_000, 22_050, 44_100])
def test_resample_keeps_a_tone_in_place(rate: int) -> None:
    def tone(rate: float, seconds: float = 0.5) -> np.ndarray:
        time = np.arange(int(rate * seconds)) / rate
        return (np.sin(2 * np.pi * 440 * time) * np.sin(np.pi * time / seconds) ** 2).astype(np.float32)

    out = resample(tone(rate), rate)
    assert len(out) == 12_000
    np.testing.assert_allclose(out, tone(24_000), atol=2e-3)
