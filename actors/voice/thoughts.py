"""What of a language model's text is meant for the ear. Servers differ in what they leave in it: thoughts between tags,
marks of chat templates and channels, tool calls as text."""

from __future__ import annotations

import re

# What hides the text up to its counterpart.
_PAIRS = {
    "<think>": "</think>",
    "<thinking>": "</thinking>",
    "<thought>": "</thought>",
    "<reasoning>": "</reasoning>",
    "<scratchpad>": "</scratchpad>",
    "[THINK]": "[/THINK]",
    "◁think▷": "◁/think▷",
    "<tool_call>": "</tool_call>",
}
_CLOSINGS = frozenset(_PAIRS.values())
_MARKS = ("</s>", "<s>", "<end_of_turn>", "<start_of_turn>", "[/INST]", "[INST]")
# Marks such as <|im_end|> and those of channels: <|channel|>analysis<|message|>...<|end|>.
_SPECIAL = re.compile(r"<[|｜]([\w▁]{1,40})[|｜]>")
_TOKEN = re.compile("|".join(map(re.escape, (*_PAIRS, *_CLOSINGS, *_MARKS))) + f"|{_SPECIAL.pattern}", re.IGNORECASE)
_LONGEST_TOKEN = 44
_FINAL = "final"
# The channels of a server that has dropped their marks: "analysisThe user ... assistantfinalHello".
_UNMARKED = re.compile(r"\s*analysis(?=[A-Z])")
_UNMARKED_FINAL = re.compile(r"assistantfinal|assistant\s*final(?=[A-Z])")


class Thoughts:
    """Takes text as it streams in and returns what may be spoken.

    Args:
        thinks_first: the server opens its thoughts without a tag: all is hidden until they close.

    Attributes:
        stray: thoughts were closed that had not been opened: this server's next reply begins hidden.
        calls: what stood between the tags of tool calls.
    """

    def __init__(self, thinks_first: bool = False) -> None:
        self.stray = False
        self.calls: list[str] = []
        self._waiting = ""  # not looked at to its end yet
        self._hidden = ""  # since the tag that hides it, or all of an assumed thought
        self._until: str | None = "</think>" if thinks_first else None
        self._assumed = thinks_first
        self._header = False  # between the mark of a channel and that of its message
        self._begun = False

    def push(self, text: str) -> str:
        """What `text` lets be spoken."""
        self._waiting += text
        if not self._begun and not self._began():
            return ""
        spoken = ""
        while match := _TOKEN.search(self._waiting):
            spoken += self._take(self._waiting[: match.start()])
            self._waiting = self._waiting[match.end() :]
            spoken = self._token(match.group().lower(), match.group(1), spoken)
        keep = _partial(self._waiting)
        spoken += self._take(self._waiting[: len(self._waiting) - keep])
        self._waiting = self._waiting[len(self._waiting) - keep :]
        return spoken

    def flush(self) -> str:
        """The rest, at the end of the text."""
        if not self._begun and self._waiting:
            self._begun = True
            if match := _UNMARKED_FINAL.search(self._waiting):
                self._waiting = self._waiting[match.end() :]
            elif _UNMARKED.match(self._waiting):
                self._waiting = ""
        spoken = self.push("") + self._take(self._waiting)
        self._waiting = ""
        if self._assumed:  # nothing closed the thought that was taken for granted: it was the answer
            spoken, self._assumed, self._until = self._hidden + spoken, False, None
        return spoken

    def _began(self) -> bool:
        """Whether it is known that the text does not begin with a channel whose marks were dropped."""
        if _UNMARKED.match(self._waiting):
            match = _UNMARKED_FINAL.search(self._waiting)
            if match is None:
                return False
            self._waiting = self._waiting[match.end() :]
        elif "analysis".startswith(self._waiting.lstrip()[:8]) and len(self._waiting.lstrip()) < 9:
            return False
        self._begun = True
        return True

    def _take(self, text: str) -> str:
        """Plain text: spoken, or kept as hidden."""
        if self._until is None and not self._header:
            return text
        self._hidden += text
        return ""

    def _token(self, token: str, special: str | None, spoken: str) -> str:
        """What may be spoken of the text so far, after a tag or a mark."""
        if special is not None:
            return self._special(special.lower(), spoken)
        if self._until is not None:
            if token == self._until.lower():
                if self._until == "</tool_call>":
                    self.calls.append(self._hidden.strip())
                self._show()
        elif token in _LOWER_PAIRS:
            self._until, self._hidden = _LOWER_PAIRS[token], ""
        elif token in _LOWER_CLOSINGS and token != "</tool_call>":
            self.stray, spoken = True, ""  # all before it was a thought, of which some may have been spoken
        return spoken

    def _special(self, name: str, spoken: str) -> str:
        if name in ("channel", "start", "start_header_id"):
            self._header, self._hidden = True, ""
        elif name in ("message", "end_header_id"):
            channel, self._header = self._hidden.strip().lower(), False
            thought = name == "message" and channel and not channel.startswith((_FINAL, "assistant"))
            self._until, self._hidden = ("<|end|>" if thought else None), ""
        elif name in ("end", "return", "call", "eot_id", "im_end") and self._until == "<|end|>":
            self._show()
        return spoken

    def _show(self) -> None:
        self._until, self._hidden, self._assumed = None, "", False


_LOWER_PAIRS = {opening.lower(): closing for opening, closing in _PAIRS.items()}
_LOWER_CLOSINGS = frozenset(closing.lower() for closing in _CLOSINGS)
_BEGINNINGS = tuple(token.lower() for token in (*_PAIRS, *_CLOSINGS, *_MARKS))


def _partial(text: str) -> int:
    """How many characters at the end may be the beginning of a tag or mark."""
    for start in range(max(0, len(text) - _LONGEST_TOKEN), len(text)):
        rest = text[start:].lower()
        if rest[0] in "<[◁" and (
            any(b.startswith(rest) for b in _BEGINNINGS) or re.fullmatch(r"<([|｜][\w▁]*[|｜]?)?", rest)
        ):
            return len(text) - start
    return 0
