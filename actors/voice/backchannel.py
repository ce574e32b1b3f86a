"""Backchannels, by which a listener encourages the speaker to go on, as whisper writes them."""

from __future__ import annotations

import re

from actors.voice.protocols import Transcript

# All patterns here take linear time: what a user can make a recogniser write must not hold up the event loop.
_WORD = (
    r"uh ?huh|uh+|um+|a ?ha|ah+|oh+|huh|yeah|yep|yes|yup|ok|okay|right|sure|i see|wow|cool|nice|great|go on|got it|"
    r"interesting|really|true|exactly|thank you|thanks|you"
)
_BACKCHANNEL = re.compile(rf"(?:{_WORD})(?: (?:{_WORD})){{0,3}}")
_HUM = frozenset("mh")
_ANSWERS = re.compile(r"\b(yes|yeah|yep|yup|ok|okay|sure|right|really|thank you|thanks|mm+|m+hm+|uh-?huh)\b")
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
    beside_hums = " ".join(word for word in words.replace("-", " ").split() if not _HUM.issuperset(word))
    if not beside_hums or _BACKCHANNEL.fullmatch(beside_hums):
        return True
    return doubt and heard.confidence < _DOUBTFUL and _ORDERS.search(words) is None


def may_answer(text: str) -> bool:
    """Whether a backchannel could also answer a question ("yes", "okay")."""
    return _ANSWERS.search(text.lower()) is not None
