"""Streamed text -> pieces that can be spoken as they come: a short one first, then whole sentences."""

from __future__ import annotations

import re

# None of these patterns takes quadratic time: models repeat what users write.
_SENTENCE_END = re.compile(r"(?<![.!?…])[.!?…]+[\"”’')\]]*(?=\s)|\n")
_CLAUSE_END = re.compile(r"(?<![,;:])[,;:]+[\"”’')\]]*(?=\s)|\s[–—-](?=\s)|—")
_ABBREVIATION = re.compile(r"\b(mr|mrs|ms|dr|st|prof|vs|e\.g|i\.e|etc|no|[a-z])\.$", re.IGNORECASE)
_LONGEST_ABBREVIATION = 5
_FIRST_WORDS = 2  # words after which the first piece may end at a comma
_LONG = 120  # characters after which any piece may end at a comma
_LONGEST = 240  # characters after which a piece may end at a space

# Language models write for the eye; this markup must not be spoken.
_MARKUP = re.compile(r"\*\*|__|[*_`#>|~]+|\[([^][]{0,200})\]\([^()]{0,500}\)|https?://\S+")


class ClauseSplitter:
    """Takes text as it streams in and returns what is ready to be spoken."""

    def __init__(self) -> None:
        self._text = ""
        self._first = True

    def push(self, text: str) -> list[str]:
        """The clauses that `text` completes; none is empty."""
        self._text += text
        clauses = []
        while (end := self._end()) is not None:
            clauses += _spoken(self._text[:end])
            self._text = self._text[end:]
            self._first = self._first and not clauses
        return clauses

    def flush(self) -> list[str]:
        """The rest, at the end of the text."""
        rest, self._text = self._text, ""
        return _spoken(rest)

    def _end(self) -> int | None:
        """Where the first complete clause ends, if there is one."""
        ends = []
        for match in _SENTENCE_END.finditer(self._text):
            near = max(0, match.end() - _LONGEST_ABBREVIATION)
            if not _ABBREVIATION.search(self._text, near, match.end()) or match.group() == "\n":
                ends.append(match.end())
                break
        for match in _CLAUSE_END.finditer(self._text):
            before = self._text[: match.end()]
            if (self._first and len(before.split()) >= _FIRST_WORDS) or len(before) >= _LONG:
                ends.append(match.end())
                break
        if ends:
            return min(ends)
        if len(self._text) > _LONGEST:
            return self._text.rfind(" ", 0, _LONGEST) + 1 or _LONGEST
        return None


def _spoken(text: str) -> list[str]:
    """[text without markup], or [] if that holds nothing to speak."""
    text = " ".join(_MARKUP.sub(lambda m: m.group(1) or " ", text).split())
    return [text] if any(c.isalnum() for c in text) else []
