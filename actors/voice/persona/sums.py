"""Small sums, spoken or written: "how much is seven times eight", "15% of 80", "the square root of 81"."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from actors.voice.persona.numerals import LONGEST_NUMBER, read, to_words

_OPERATORS = {
    "plus": "+", "and": "+", "+": "+", "add": "+", "minus": "-", "-": "-", "–": "-", "less": "-", "take": "-",
    "times": "*", "x": "*", "*": "*", "×": "*", "multiplied": "*", "divided": "/", "over": "/", "/": "/", "÷": "/",
}  # fmt: skip
_SPOKEN = {"+": "plus", "-": "minus", "*": "times", "/": "divided by"}
_FILLER = frozenset({"by", "away"})
_LONGEST_SUM = 15  # numbers and operators of a sum that is repeated in the answer
# Whisper sometimes writes a number's homophone; between operators it can only be the number.
_HOMOPHONES = {"to": "two", "too": "two", "for": "four", "fore": "four", "ate": "eight", "won": "one", "tin": "ten"}
_ASKS = re.compile(
    r"how much|what('s| is| are)|calculate|work out|add|equals?|sum|can you|tell me|=|^\W*[\d(]", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Sum:
    """A solved sum, in words: `question` "seven times eight", `answer` "fifty-six"; `exact` is False if rounded."""

    question: str
    answer: str
    exact: bool = True


def solve(text: str) -> Sum | None:
    """The sum that `text` asks for, or None. Raises ZeroDivisionError if it divides by zero."""
    text = text.lower().replace("%", " percent ")
    for pattern, function, name in _SPECIAL:
        if match := re.search(pattern, text):
            # The number is the pattern's group, if it has one, else it follows the match.
            number = read(_words(match.group(1) if match.re.groups else text[match.end() :]))
            if number is not None:
                return _answer(name.format(to_words(number[0])), function(number[0]))
    words = _words(text)
    if "percent" in words and (solved := _percent(words)):
        return solved
    tokens = _tokens(words)
    operators = [t for t in tokens if isinstance(t, str)]
    if len(tokens) < 3 or not operators or not (_ASKS.search(text) or len(tokens) >= len(words) - 1):
        return None
    if "and" in words and not re.search(r"\badd\b|\bsum\b|\bplus\b|[+*/x]|times|minus|divided", text):
        return None  # "two and three" alone is not a sum
    spoken = (_SPOKEN[t] if isinstance(t, str) else to_words(t) for t in tokens)
    question = " ".join(spoken) if len(tokens) <= _LONGEST_SUM else "all of that"
    return _answer(question, _evaluate(tokens))


def _root(number: float) -> float:
    return math.sqrt(number) if number >= 0 else math.nan


_SPECIAL = (
    (r"square root of\b", _root, "the square root of {}"),
    (r"half of\b", lambda n: n / 2, "half of {}"),
    (r"\b(?:twice|double)\b", lambda n: 2 * n, "twice {}"),
    (r"([\w.,-]{1,40})[ -]squared", lambda n: n * n, "{} squared"),
    (r"([\w.,-]{1,40})[ -]cubed", lambda n: n**3, "{} cubed"),
)


def _words(text: str) -> list[str]:
    words = re.findall(r"\d[\d,]*(?:\.\d+)?|[a-z]+(?:-[a-z]+)?|[+*/×÷–-]", text)
    return [w.rstrip(",") for w in words]


def _percent(words: list[str]) -> Sum | None:
    at = words.index("percent")
    for start in range(max(0, at - 4), at):
        share = read(words[start:at])
        if share and start + share[1] >= at and at + 2 < len(words) + 1 and words[at + 1 : at + 2] == ["of"]:
            whole = read(words[at + 2 :])
            if whole:
                return _answer(f"{to_words(share[0])} percent of {to_words(whole[0])}", share[0] * whole[0] / 100)
    return None


def _tokens(words: list[str]) -> list[float | str]:
    """The longest run of number, operator, number, … in `words`.

    A run that begins inside another is no longer than that one, so the search goes on behind it: the time is linear.
    """
    best: list[float | str] = []
    start = 0
    while start < len(words):
        tokens: list[float | str] = []
        i = start
        while i < len(words):
            word = words[i]
            if len(tokens) % 2:
                if word not in _OPERATORS:
                    break
                tokens.append(_OPERATORS[word])
                i += 1
                while i < len(words) and words[i] in _FILLER:
                    i += 1
                continue
            near = [*words[max(0, i - 1) : i], *words[i + 1 : i + 2]]
            if word in _HOMOPHONES and any(w in _OPERATORS and w != "and" for w in near):
                word = _HOMOPHONES[word]
            ahead = [word, *words[i + 1 : i + LONGEST_NUMBER]]
            number = read(ahead)
            if number is None:
                break
            tokens.append(number[0])
            i += _consumed(ahead, number[1])
        start = max(i, start + 1)
        if len(tokens) % 2 == 0:
            tokens = tokens[:-1]
        if len(tokens) > len(best):
            best = tokens
    return best


def _consumed(words: list[str], parts: int) -> int:
    """How many of `words` the first `parts` parts are, where "twenty-one" has two."""
    for i, word in enumerate(words):
        if parts <= 0:
            return i
        parts -= 1 + (word.count("-") if len(word) > 1 else 0)
    return len(words)


def _evaluate(tokens: list[float | str]) -> float:
    """Times and divided before plus and minus, each from left to right."""
    total, sign, product = 0.0, 1.0, float(tokens[0])
    for operator, number in zip(tokens[1::2], tokens[2::2], strict=True):
        n = float(number)
        if operator == "*":
            product *= n
        elif operator == "/":
            product /= n
        else:
            total, sign, product = total + sign * product, 1.0 if operator == "+" else -1.0, n
    return total + sign * product


def _answer(question: str, value: float) -> Sum | None:
    if not math.isfinite(value) or abs(value) >= 1e12:
        return None
    rounded = round(value, 2)
    return Sum(question, to_words(rounded), math.isclose(rounded, value, abs_tol=1e-9))
