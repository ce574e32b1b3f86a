"""What the training voices say: random sentences, and never those of a held-out list."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from functools import cache

import numpy as np

from characters.assets import HIBARI

# Never spoken in training, so figures on these sentences are figures on unseen ones.
HELD_OUT = (
    "Hello there, it is lovely to meet you.",
    "My name is Ruby, and I will be your guide this afternoon.",
    "Bob and Mary put up a big map by the pool.",
    "We could go for a walk along the river if the weather stays warm.",
    "Oh no, I forgot to bring my blue umbrella again!",
    "The quick brown fox jumps over the lazy dog.",
    "She sells sea shells by the sea shore.",
    "Would you like me to explain how this works?",
    "Five very famous farmers moved to France in February.",
    "Please wait a moment while I look that up for you.",
    "That is a wonderful question, thank you for asking.",
    "I was born in a little village near the mountains.",
    "Why don't we try something different tomorrow morning?",
    "People often ask me about the weather, but I prefer music.",
    "Peter picked a peck of pickled peppers.",
    "Good night, and see you very soon.",
)

_LINES = tuple(
    line.strip()
    for line in """
    Hi! How are you doing today? | Sure, I can help with that. | Let me think about it for a second. | I am so sorry.
    | What would you like to know? | That sounds like a great idea. | Yes, of course. | No, not really. | Hmm. | Okay!
    | Thanks for waiting. | Could you say that one more time? | I am not sure I understand. | Tell me more about it.
    | Well, it depends on what you mean. | You're welcome! | Nice to see you back. | Wow, that's amazing. | Goodbye!
    | Right, so here is the plan. | Actually, I have never been there. | What a beautiful morning! | Maybe, maybe not.
    | First, open the box; then, push the button. | Do you want to hear a joke? | Take your time, there is no hurry.
    | My favourite colour is purple. | It's about half past four. | Who told you that? | Absolutely, go for it.
    """.replace("\n", " ").split("|")
)
_TWISTERS = tuple(
    line.strip()
    for line in """
    Betty bought a bit of better butter. | How much wood would a woodchuck chuck? | Fuzzy Wuzzy was a bear.
    | Red lorry, yellow lorry. | Six thick thistle sticks. | A proper copper coffee pot. | Unique New York, you know.
    | Freshly fried flying fish. | Many mumbling mice are making merry music in the moonlight. | Pop, pop, pop!
    | Mamma made me mash my mango. | We'll weather the wild wet winds of winter. | Papa put the pot upon the mop.
    | Which witch wished which wicked wish? | Father saw a large calm palm on the far lawn. | Who threw two blue shoes?
    | Vivid violet velvet vests. | Room for more moon food soon. | Whose cool pool do you use? | Aha, a llama drama!
    """.replace("\n", " ").split("|")
)


def _words(text: str) -> list[str]:
    return text.split()


_WHO = _words("I you we they he she people everyone nobody somebody Bob Emma Mum Papa")
_DO = _words(
    "think know want like see hear need found made took gave told asked moved helped build bring keep watch love"
    " bought wrapped pushed may have must believe"
)
_WHICH = _words("the a this that my your our every some no one two both")
_JOIN = _words("and but so because when while before after if")
_WHEN = _words("today now maybe please really always never here there again soon tomorrow")


@cache
def _lexicon() -> list[str]:
    with gzip.open(HIBARI.file("lexicon_us_gold.json.gz"), "rt", encoding="utf8") as file:
        words = json.load(file)
    return [w for w in words if w.isascii() and w.isalpha() and w.islower() and 2 <= len(w) <= 9]


def sentences(rng: np.random.Generator) -> Iterator[str]:
    """Endless random sentences: words of hibari's lexicon in templates, stock lines, tongue twisters and numbers."""

    def pick(choices: tuple[str, ...] | list[str]) -> str:
        return choices[rng.integers(len(choices))]

    def words(count: int) -> str:
        return " ".join(pick(_lexicon()) for _ in range(count))

    while True:
        kind = rng.integers(10)
        if kind < 2:
            text = words(rng.integers(3, 9))
        elif kind == 2:
            text = (
                f"{pick(_WHO)} {pick(_DO)} {pick(_WHICH)} {words(2)} {pick(_JOIN)} {pick(_WHO)} {pick(_DO)} {words(1)}"
            )
        elif kind == 3:
            text = f"{pick(_WHEN)}, {pick(_WHO)} {pick(_DO)} {pick(_WHICH)} {words(2)} {pick(_WHEN)}"
        elif kind == 4:
            text = f"how would {pick(_WHO)} {pick(_DO)} {pick(_WHICH)} {words(1)} with {pick(_WHICH)} {words(1)}"
        elif kind == 5:
            text = (
                f"{words(2)} is {pick(_WHICH)} {words(1)} of {words(2)} {pick(_JOIN)} {pick(_WHO)} can {pick(_DO)} it"
            )
        elif kind == 6:
            text = pick(_LINES)
        elif kind == 7:
            text = pick(_TWISTERS)
        elif kind == 8:
            text = f"{pick(_WHO)} {pick(_DO)} {rng.integers(2, 2000)} {words(1)} at {rng.integers(1, 13)} {words(1)}"
        else:
            text = f"{words(1)}, {words(1)}, {words(1)}, {pick(_JOIN)} {words(1)}"
        if text in HELD_OUT:
            continue
        yield text if text[-1] in ".!?" else text[0].upper() + text[1:] + pick((".", ".", "?", "!"))
