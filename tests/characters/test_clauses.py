from __future__ import annotations

import time

import pytest

from characters.speech.clauses import LONGEST, ClauseSplitter, sentences


def split(text: str, size: int = 3) -> list[str]:
    """Clauses of a text that streams in, `size` characters at a time."""
    splitter = ClauseSplitter()
    clauses = []
    for start in range(0, len(text), size):
        clauses += splitter.push(text[start : start + size])
    return clauses + splitter.flush()


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_the_first_clause_is_short_and_the_others_are_sentences(size: int) -> None:
    text = 'Of course I do, my friend, and gladly. It is late, though, is it not? "Yes," said Dr. Gray. Bye'
    assert split(text, size) == [
        "Of course I do,",
        "my friend, and gladly.",
        "It is late, though, is it not?",
        '"Yes," said Dr. Gray.',
        "Bye",
    ]


def test_a_clause_comes_as_soon_as_it_is_complete() -> None:
    splitter = ClauseSplitter()
    assert splitter.push("Well now,") == []  # a figure could go on: 1,000
    assert splitter.push(" let me see") == ["Well now,"]


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("**Bold** and `code` and # heading", ["Bold and code and heading"]),
        ("See [the page](https://example.org/x) now.", ["See the page now."]),
        ("It costs 1,000.50 in all.", ["It costs 1,000.50 in all."]),
        ("... !!! ,", []),
        ("", []),
        ("One\nTwo", ["One", "Two"]),
    ],
)
def test_only_what_can_be_spoken(text: str, spoken: list[str]) -> None:
    assert split(text) == spoken


def test_endless_text_is_cut() -> None:
    assert max(len(clause) for clause in split("word " * 500)) <= 240
    assert max(len(clause) for clause in split("x" * 2000)) <= 240


@pytest.mark.parametrize("text", ["." * 4000, ",;:" * 1300, "[" * 4000, "[x](" * 1000, "e. " * 1300, '."' * 2000])
def test_no_text_takes_long(text: str) -> None:
    begin = time.process_time()
    splitter = ClauseSplitter()
    splitter.push(text)
    splitter.flush()
    assert time.process_time() - begin < 0.05


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("It is 98.6 degrees, says Dr. Lee. He knows.", ["It is 98.6 degrees, says Dr. Lee.", "He knows."]),
        ("We met Prof. J. R. Smith vs. Mr. Li, e.g. now.", ["We met Prof. J. R. Smith vs. Mr. Li, e.g. now."]),
        ("See No. 5 and fig. 3. No. That is wrong.", ["See No. 5 and fig. 3.", "No.", "That is wrong."]),
        ("Cats, dogs etc. and so on. It costs $3.50.", ["Cats, dogs etc. and so on.", "It costs $3.50."]),
        ("1. Wash. 2. Dry.", ["1. Wash.", "2. Dry."]),
        ("That was one.Two follows.", ["That was one.", "Two follows."]),
        ("I use Node.JS and example.org.", ["I use Node.JS and example.org."]),
        ("你好。我是安娜！走吧", ["你好。", "我是安娜！", "走吧"]),
        ("नमस्ते। आप कैसे हैं?", ["नमस्ते।", "आप कैसे हैं?"]),
        ("هل أنت بخير؟ نعم.", ["هل أنت بخير؟", "نعم."]),
    ],
)
def test_files_and_rooms_find_the_same_sentences(text: str, spoken: list[str], size: int) -> None:
    assert sentences(text) == spoken
    assert "".join(split(text, size)).replace(" ", "") == "".join(spoken).replace(" ", "")
    ends = [sentence[-1] for sentence in spoken]
    assert [clause[-1] for clause in split(text, size) if clause[-1] not in ",，"] == ends


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("2 * 3 = 6.", "2 times 3 equals 6."),
        ("2*3", "2 times 3"),
        ("5 > 3 and 3 < 5.", "5 is greater than 3 and 3 is less than 5."),
        ("7 - 9 is -2", "7 minus 9 is minus 2"),
        ("C# and F# but C++", "C sharp and F sharp but C++"),
        ("#1 of ~50", "number 1 of about 50"),
        ("a_b and snake_case", "a_b and snake_case"),
        ("*really* __very__ ~~not~~ `x`", "really very not x"),
        ("# Title", "Title"),
        ("> quoted", "quoted"),
        ("- an item", "an item"),
        ("well-known, 3-4 days", "well-known, 3-4 days"),
    ],
)
def test_signs_are_said_and_markup_is_not(text: str, spoken: str) -> None:
    assert sentences(text) == [spoken]


@pytest.mark.parametrize("text", ["word " * 2400, "x" * 12_000, "安" * 12_000, "a, " * 4000])
def test_a_text_without_a_stop_comes_in_pieces(text: str) -> None:
    for pieces in (sentences(text), split(text, 1000)):
        assert max(map(len, pieces)) <= LONGEST
        assert len("".join(pieces).replace(" ", "")) >= len(text.replace(" ", "")) - 1
