"""Backchannels, by which a listener encourages the speaker to go on, as whisper writes them."""

from __future__ import annotations

import re

from actors.voice.protocols import Transcript

_WORD = (
    r"(?:[mh]m?[ -]?)+|m+h?m+|hm+|uh+|uh-?huh|um+|a-?ha|ah+|oh+|huh|yeah|yep|yes|yup|ok|okay|right|sure|i see|wow|cool|"
    r"nice|great|go on|got it|interesting|really|true|exactly|thank you|thanks|you"
)
_BACKCHANNEL = re.compile(rf"(?:{_WORD})(?:[ -](?:{_WORD})){{0,3}}")
_ANSWERS = re.compile(r"\b(yes|yeah|yep|yup|ok|okay|sure|right|really|thank you|thanks|m+h?m+|uh-?huh)\b")
# Words that are obeyed at once, however unclear they are.
_ORDERS = re.compile(r"\b(stop|wait|no|hold on|hang on|excuse me|sorry|hey|but|what|listen|quiet|enough|pause)\b")
_DOUBTFUL = -1.0  # mean log probability: clear words lie above it, hums that whisper takes for words mostly below


def is_backchannel(heard: Transcript, doubt: bool = False) -> bool:
    """Whether a transcript is encouragement, a hum or empty, and so not a turn.

    Args:
        heard: the transcript.
        doubt: whether the sound was short; then a transcript of low confidence is a hum, unless it reads as an order.
    """
    words = " ".join(re.sub(r"[^\w' -]", " ", heard.text.lower()).split())
    if not words or _BACKCHANNEL.fullmatch(words):
        return True
    return doubt and heard.confidence < _DOUBTFUL and _ORDERS.search(words) is None


def may_answer(text: str) -> bool:
    """Whether a backchannel could also answer a question ("yes", "okay")."""
    return _ANSWERS.search(text.lower()) is not None
