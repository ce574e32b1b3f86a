"""Numbers as people say them, both ways: "a hundred and five" <-> 105."""

from __future__ import annotations

import re

_BELOW_TWENTY = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
_ROUND = "zero ten twenty thirty forty fifty sixty seventy eighty ninety"
_ONES, _TENS = _BELOW_TWENTY.split(), _ROUND.split()
_SMALL = {w: i for i, w in enumerate(_ONES)} | {w: 10 * i for i, w in enumerate(_TENS) if i > 1}
_SCALES = {"hundred": 100, "thousand": 1000, "million": 1_000_000}
LONGEST_NUMBER = 24  # words of a number that are read
_LARGEST = 1e15  # no number from here on is read: arithmetic on those below it overflows nowhere
_DIGITS = re.compile(r"\d[\d,]*(\.\d+)?")


def to_words(number: float) -> str:
    """105 -> "one hundred and five"; 2.5 -> "two point five"; beyond a billion, digits."""
    if number < 0:
        return "minus " + to_words(-number)
    if number != int(number):
        whole, _, digits = f"{number:.2f}".rstrip("0").partition(".")
        return f"{to_words(int(whole))} point {' '.join(_ONES[int(d)] for d in digits)}"
    n = int(number)
    if n < 20:
        return _ONES[n]
    if n < 100:
        return _TENS[n // 10] + (f"-{_ONES[n % 10]}" if n % 10 else "")
    if n >= 1_000_000_000:
        return f"{n:,}"
    for name, size in (("million", 1_000_000), ("thousand", 1000), ("hundred", 100)):
        if n >= size:
            rest = n % size
            joint = " and " if 0 < rest < 100 else " "
            return f"{to_words(n // size)} {name}" + (joint + to_words(rest) if rest else "")
    raise AssertionError


def ordinal(day: int) -> str:
    """21 -> "twenty-first"; for the days of a month."""
    special = {1: "first", 2: "second", 3: "third", 5: "fifth", 8: "eighth", 9: "ninth", 12: "twelfth"}
    if day in special:
        return special[day]
    if day > 20 and day % 10:
        return f"{_TENS[day // 10]}-{ordinal(day % 10)}"
    word = to_words(day)
    return word[:-1] + "ieth" if word.endswith("y") else word + "th"


def read(words: list[str]) -> tuple[float, int] | None:
    """The number that `words` begins with and how many words it takes: ["two", "hundred", "cats"] -> (200, 2)."""
    found = _read(words[:LONGEST_NUMBER])
    return found if found is not None and found[0] < _LARGEST else None


def _read(words: list[str]) -> tuple[float, int] | None:
    if not words:
        return None
    if _DIGITS.fullmatch(words[0]):
        value, used = float(words[0].replace(",", "")), 1
        while used < len(words) and words[used] in _SCALES:
            value *= _SCALES[words[used]]
            used += 1
        return value, used
    total, group, used = 0.0, 0.0, 0
    words = [part for word in words for part in (word.split("-") if word.split("-")[0] in _SMALL else [word])]
    for i, word in enumerate(words):
        if word in _SMALL:
            group += _SMALL[word]
        elif word in _SCALES:
            scale = _SCALES[word]
            if scale == 100:
                group = max(1.0, group) * 100
            else:
                total, group = total + max(1.0, group) * scale, 0.0
        elif _joins(words, i, used):
            pass
        elif word == "point" and used and i + 1 < len(words) and words[i + 1] in _SMALL:
            digits = []
            for later in words[i + 1 :]:
                if _SMALL.get(later, 10) > 9:
                    break
                digits.append(str(_SMALL[later]))
            return total + group + float("0." + "".join(digits)), used + 1 + len(digits)
        else:
            break
        used = i + 1
    return (total + group, used) if used else None


def _joins(words: list[str], i: int, used: int) -> bool:
    """Whether word i is the "a" of "a hundred" or the "and" of "a hundred and five"."""
    following = words[i + 1] if i + 1 < len(words) else ""
    if words[i] == "a":
        return following in _SCALES
    return words[i] == "and" and used > 0 and words[i - 1] in _SCALES and following in _SMALL
