"""What of a written text is said: language models and people write for the eye."""

from __future__ import annotations

import re

# Markup is taken away, and nothing that only looks like it: "2 * 3", "5 > 3", "C#", "#1", "a_b", "x | y".
_LINE = re.compile(r"^[ \t]*(?:#{1,6}(?=\s)|>+(?=\s)|[*+•-](?=\s)|\|(?=.*\|))[ \t]*", re.MULTILINE)
_STRONG = re.compile(r"(\*\*|__|~~)(?=\S)(.{1,400}?)(?<=\S)\1", re.DOTALL)
_EMPHASIS = re.compile(r"(?<![\w*])([*_])(?=[^\s*_])([^*_\n]{1,400}?)(?<=[^\s*_])\1(?![\w*])")
_CODE = re.compile(r"`+")
_RULE = re.compile(r"^\s*(?:[-*_=|:]\s*){3,}$", re.MULTILINE)
_LINK = re.compile(r"!?\[([^][]{0,200})\]\([^()]{0,500}\)")
_ADDRESS = re.compile(r"https?://\S+")
# Signs that a voice would drop, or read as the name of a key.
_SIGNS = (
    (re.compile(r"(?<=[\w)])[ \t]*[*×·][ \t]*(?=[\d(])|(?<=\d)[ \t]+[*×][ \t]+(?=\w)"), " times "),
    (re.compile(r"(?<=[\w)])[ \t]*÷[ \t]*(?=[\w(])"), " divided by "),
    (re.compile(r"(?<=[\w)])[ \t]+=[ \t]+(?=[-\w(])"), " equals "),
    (re.compile(r"(?<=[\w)])[ \t]*(?:>=|≥)[ \t]*(?=[-\w(])"), " is at least "),
    (re.compile(r"(?<=[\w)])[ \t]*(?:<=|≤)[ \t]*(?=[-\w(])"), " is at most "),
    (re.compile(r"(?<=[\w)])[ \t]+>[ \t]+(?=[-\w(])"), " is greater than "),
    (re.compile(r"(?<=[\w)])[ \t]+<[ \t]+(?=[-\w(])"), " is less than "),
    (re.compile(r"(?<=\d)[ \t]+[-−][ \t]+(?=\d)"), " minus "),
    (re.compile(r"(?<![\w-])[-−](?=\d)"), "minus "),
    (re.compile(r"(?<![\w#])([A-G])(?:#|♯)(?!\w)"), r"\1 sharp"),
    (re.compile(r"(?<![\w#])#(?=\d)"), "number "),
    (re.compile(r"(?<!\w)~(?=\d)"), "about "),
)


def spoken(text: str, line_start: bool = True) -> str:
    """A piece of a text as it is said, on one line.

    Args:
        text: the piece.
        line_start: it begins a line, where a mark may be that of a heading, a list or a quotation.
    """
    text = _LINK.sub(r"\1", _ADDRESS.sub(" ", text) if "](" not in text else text)
    text = _ADDRESS.sub(" ", text)
    text = _RULE.sub(" ", text)
    head, text = ("", text) if line_start else ("\0", "\0" + text)
    text = _LINE.sub("", text).removeprefix(head)
    text = _STRONG.sub(r"\2", text)
    text = _EMPHASIS.sub(r"\2", text)
    text = _CODE.sub(" ", text)
    for sign, words in _SIGNS:
        text = sign.sub(words, text)
    # A pair that was cut in two by the end of a clause.
    text = re.sub(r"\*\*|(?<!\w)__(?=\w)|(?<=\w)__(?!\w)|(?<![\w\s])\*|\*(?![\w\s])|(?<=\s)\*(?=\w)|^\*|\*$", " ", text)
    text = re.sub(r"\||(?<!\w)#+(?=\s|$)", " ", text)
    return re.sub(r"\s+([,.!?;:])", r"\1", " ".join(text.split()))
