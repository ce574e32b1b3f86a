from __future__ import annotations

import time

import pytest

from actors.voice.clauses import ClauseSplitter


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
