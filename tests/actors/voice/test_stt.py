from __future__ import annotations

import re
import time
from pathlib import Path

import numpy as np
import pytest

from actors.voice.stt import Whisper, _repeats
from characters.errors import UserError
from tests.actors.voice.sounds import cough, join, noise, say, to_hearing_rate

QUESTIONS = [
    "What is your name?",
    "Can you tell me a joke?",
    "How much is seven times eight?",
    "I would like to know what you can do.",
    "My name is Oliver and I live in a small town.",
    "What do you like to eat?",
    "Are you a real person?",
    "What time is it?",
]
ENGINES = ["espeak:en-us", "hibari", "flite:rms", "flite:slt"]
NUMBERS = {"7": "seven", "8": "eight"}


def words(text: str) -> list[str]:
    return [NUMBERS.get(word, word) for word in re.findall(r"[a-z0-9']+", text.lower())]


def errors(said: list[str], heard: list[str]) -> int:
    """Edit distance in words."""
    row = list(range(len(heard) + 1))
    for i, word in enumerate(said, 1):
        previous, row[0] = row[0], i
        for j, other in enumerate(heard, 1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (word != other))
    return row[-1]


def test_questions_are_understood(whisper: Whisper, capsys: pytest.CaptureFixture[str]) -> None:
    wrong, total, times = 0, 0, []
    for engine in ENGINES:
        for text in QUESTIONS:
            sound = to_hearing_rate(join(noise(0.3), say(text, engine), noise(0.2)))
            begin = time.perf_counter()
            heard = whisper.transcribe(sound)
            times.append(time.perf_counter() - begin)
            wrong += errors(words(text), words(heard.text))
            total += len(words(text))
    with capsys.disabled():
        print(f"\nspeech to text: {wrong} of {total} words wrong, {np.median(times) * 1000:.0f} ms median, one thread")
    assert wrong / total < 0.10


@pytest.mark.parametrize(
    "sound", [np.zeros(16000, np.float32), np.zeros(0, np.float32), to_hearing_rate(noise(3, 0.2))]
)
def test_no_speech_is_no_text(whisper: Whisper, sound: np.ndarray) -> None:
    assert whisper.transcribe(sound).text == ""


def test_a_cough_is_no_text(whisper: Whisper) -> None:
    assert whisper.transcribe(to_hearing_rate(join(noise(0.5), cough(), noise(0.5)))).text == ""


def test_long_speech_is_cut_not_refused(whisper: Whisper) -> None:
    sound = np.tile(to_hearing_rate(join(say("Tell me about the sea."), noise(0.3))), 20)
    assert "sea" in whisper.transcribe(sound).text


@pytest.mark.parametrize(
    ("text", "repeats"),
    [
        ("What is your name? What is your name? What is", True),
        ("no no no no no no", True),
        ("no no, I did not", False),
        ("I think that you think that I know", False),
        ("", False),
    ],
)
def test_repetitions_are_seen(text: str, repeats: bool) -> None:
    assert _repeats(text) is repeats


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no model\.bin"):
        Whisper(str(tmp_path))
    (tmp_path / "model.bin").write_bytes(b"nonsense")
    with pytest.raises(UserError, match="is not a Whisper model"):
        Whisper(str(tmp_path))
