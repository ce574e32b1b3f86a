from __future__ import annotations

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
