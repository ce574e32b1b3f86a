from __future__ import annotations

import time

import pytest

from actors.voice.backchannel import is_backchannel, may_answer
from actors.voice.protocols import Transcript


@pytest.mark.parametrize(
    ("text", "confidence", "doubt", "expected"),
    [
        ("Mm-hmm.", -0.3, False, True),
        ("MMHMM", -0.8, False, True),
        ("M-H-M", -0.7, False, True),
        ("uh huh", -0.5, False, True),
        ("Yeah, right.", -0.5, False, True),
        ("", 0.0, False, True),
        ("Okay, but what about me?", -0.2, True, False),
        ("Stop.", -2.0, True, False),
        ("No", -1.9, True, False),
        ("Namaste", -3.3, True, True),
        ("Namaste", -3.3, False, False),
        ("What time is it?", -0.3, True, False),
    ],
)
def test_backchannels(text: str, confidence: float, doubt: bool, expected: bool) -> None:
    assert is_backchannel(Transcript(text, confidence), doubt) is expected


def test_yes_may_be_an_answer() -> None:
    assert may_answer("Yes, please.") and not may_answer("Hmm.")


@pytest.mark.parametrize(
    "text",
    ["m" * 40 + " what", "mm " * 1300 + "what", "m-" * 2000 + "what", "m" * 4000 + "x", "uh huh " * 500, "oh" * 2000],
    ids=lambda text: text[:8],
)
def test_no_transcript_takes_long(text: str) -> None:
    begin = time.process_time()
    assert is_backchannel(Transcript(text, 0.0)) is False
    may_answer(text)
    assert time.process_time() - begin < 0.05


def test_hums_may_be_long_and_stand_between_words() -> None:
    assert is_backchannel(Transcript("Mm, mm, m-hm. Yeah, mmm, right.")) and is_backchannel(Transcript("hm " * 100))
