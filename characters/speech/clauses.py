"""Text -> pieces that can be spoken: as it streams in, a short one first and then whole sentences; or whole texts.

Rooms and files cut alike. A piece is at most `LONGEST` characters, whatever the text: engines take memory by the square
of a sentence's length.
"""

from __future__ import annotations

import re

from characters.speech.spoken import spoken

_CLOSING = "\"”’'»)\\]」』）"
# Scripts that put no space between sentences end them with marks of their own.
_WIDE_END = f"[。！？｡।॥؟۔።။។]+[{_CLOSING}]*"
# None of these patterns takes quadratic time: models repeat what users write.
_SENTENCE_END = re.compile(
    rf"(?<![.!?…])[.!?…]+[{_CLOSING}]*(?=\s|$)|(?<=[^\W\d_][a-z])[.!?…](?=[A-Z][a-z])|{_WIDE_END}|\n"
)
_CLAUSE_END = re.compile(rf"(?<![,;:])[,;:]+[{_CLOSING}]*(?=\s)|[，、；：،؛]|\s[–—-](?=\s)|—")
# Before a name or a figure, and so never at a sentence's end.
_TITLES = r"mr|mrs|ms|dr|st|prof|gen|sen|rep|capt|lt|col|sgt|rev|hon|mt|ft|vs|approx|est|dept|cf|e\.g|i\.e|viz|bzw"
# The same before a figure only.
_NUMBERED = "no|nos|nr|fig|figs|eq|p|pp|vol|ch|sec|art"
# At a sentence's end if a capital follows.
_OTHERS = r"jr|sr|inc|ltd|co|corp|etc|a\.m|p\.m|ph\.d|jan|feb|mar|apr|jun|jul|aug|sep|sept|oct|nov|dec|min|max|ca"
_TITLE = re.compile(rf"(?<![^\W_])(?:{_TITLES}|[a-z])\.$", re.IGNORECASE)
_NUMBER = re.compile(rf"(?<![^\W_])(?:{_NUMBERED})\.$", re.IGNORECASE)
_OTHER = re.compile(rf"(?<![^\W_])(?:{_OTHERS})\.$", re.IGNORECASE)
_ITEM = re.compile(r"\s*\d{1,3}\.$")  # "1." at the head of a list
_LONGEST_ABBREVIATION = 8
_FIRST_WORDS = 2  # words after which the first piece may end at a comma
_FIRST_LETTERS = 4  # and letters, in scripts without spaces
_LONG = 120  # characters after which any piece may end at a comma
LONGEST = 240


class ClauseSplitter:
    """Takes text as it streams in and returns what is ready to be spoken."""

    def __init__(self) -> None:
        self._text = ""
        self._first = True
        self._line_start = True

    def push(self, text: str) -> list[str]:
        """The clauses that `text` completes; none is empty."""
        self._text += text
        return self._cut(last=False)

    def flush(self) -> list[str]:
        """The rest, at the end of the text."""
        clauses = self._cut(last=True)
        rest, self._text = self._text, ""
        return clauses + self._spoken(rest)

    def _cut(self, last: bool) -> list[str]:
        clauses: list[str] = []
        while (end := self._end(last)) is not None:
            clauses += self._spoken(self._text[:end])
            self._text = self._text[end:]
            self._first = self._first and not clauses
        return clauses

    def _spoken(self, piece: str) -> list[str]:
        text = spoken(piece, self._line_start)
        self._line_start = piece.endswith("\n") or (self._line_start and not piece.strip())
        return [text] if any(c.isalnum() for c in text) else []

    def _end(self, last: bool) -> int | None:
        """Where the first complete clause ends, if there is one."""
        window = self._text[: LONGEST + 1]
        sentence = sentence_end(window, last or len(window) > LONGEST)
        ends = [] if sentence is None else [sentence]
        for match in _CLAUSE_END.finditer(window):
            before = window[: match.end()]
            words = len(before.split()) >= _FIRST_WORDS or _letters(before) >= _FIRST_LETTERS
            if (self._first and words) or len(before) >= _LONG:
                ends.append(match.end())
                break
        if ends:
            return min(ends)
        return _forced(window) if len(window) > LONGEST else None


def sentences(text: str) -> list[str]:
    """The sentences of a whole text, none longer than `LONGEST`, without markup."""
    found, line_start, at = [], True, 0
    while at < len(text):
        window = text[at : at + LONGEST + 1]
        end = sentence_end(window, len(window) <= LONGEST)
        if end is None:
            end = _forced(window) if len(window) > LONGEST else len(window)
        piece = window[:end]
        sentence = spoken(piece, line_start)
        line_start = piece.endswith("\n") or (line_start and not piece.strip())
        if any(c.isalnum() for c in sentence):
            found.append(sentence)
        at += end
    return found


def sentence_end(text: str, last: bool) -> int | None:
    """Where the first sentence of a text ends, or None.

    Args:
        text: from the beginning of a sentence.
        last: nothing follows. Else an end is one only if what follows cannot make it an abbreviation's dot.
    """
    for match in _SENTENCE_END.finditer(text):
        end = match.end()
        if match.group() != "\n" and end == len(text) and not last and text[match.start()] in ".!?…":
            return None  # a figure or another mark could follow
        if not match.group().startswith(".") or len(match.group().rstrip(_CLOSING)) > 1:
            return end
        head, following = text[max(0, end - _LONGEST_ABBREVIATION) : match.start() + 1], text[end:].lstrip()
        known = _TITLE.search(head), _NUMBER.search(head), _OTHER.search(head), _ITEM.fullmatch(text[:end])
        if not following and not last and any(known):
            return None
        title, numbered, other, item = known
        if title and following and not (len(title.group()) == 2 and title.group()[0].lower() == "i"):
            continue
        if (numbered and following[:1].isdigit()) or (other and following and not following[:1].isupper()) or item:
            continue
        if following[:1].islower() and (other or title):
            continue
        return end
    return None


def _forced(text: str) -> int:
    """Where a piece that is too long is cut: at a comma, a space, or anywhere."""
    ends = [match.end() for match in _CLAUSE_END.finditer(text, 0, LONGEST)]
    return (ends[-1] if ends and ends[-1] > _LONG // 2 else 0) or text.rfind(" ", 0, LONGEST) + 1 or LONGEST


def _letters(text: str) -> int:
    """Letters of scripts that put no spaces between words."""
    return sum(
        "\u0e00" <= c <= "\u0eff" or "\u1000" <= c <= "\u109f" or "\u1780" <= c <= "\u17ff" or c >= "\u2e80"
        for c in text
    )
