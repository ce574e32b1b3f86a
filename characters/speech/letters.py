"""Letters that an English voice has no sounds for: accents are taken off, other scripts are told."""

from __future__ import annotations

import logging
import unicodedata
from collections.abc import Iterator

from characters.speech.base import Speech, Synthesiser

log = logging.getLogger(__name__)

# Latin letters that Unicode does not divide into a letter and its mark.
_PLAIN = str.maketrans({"ß": "ss", "ẞ": "SS", "æ": "ae", "Æ": "Ae", "œ": "oe", "Œ": "Oe", "ø": "o", "Ø": "O", "ł": "l",
                        "Ł": "L", "đ": "d", "Đ": "D", "ð": "d", "Ð": "D", "þ": "th", "Þ": "Th", "ı": "i"})  # fmt: skip
_NO_SCRIPT = ("LATIN", "FULLWIDTH", "MODIFIER", "FEMININE", "MASCULINE", "MICRO", "MATHEMATICAL", "")


def foreign_scripts(text: str) -> list[str]:
    """The scripts of the letters that are not Latin, such as ["CJK", "Cyrillic"], in order."""
    found = set()
    for letter in filter(str.isalpha, text):
        script = unicodedata.name(letter, "").split(" ")[0]
        if script not in _NO_SCRIPT:
            found.add(script if script == "CJK" else script.title())
    return sorted(found)


def plain_latin(text: str) -> str:
    """Latin letters without accents and ornament, "Zoë" -> "Zoe", "𝐇𝐢" -> "Hi"; those of other scripts as they are."""
    kept: list[str] = []
    base = ""
    for character in "".join(unicodedata.normalize("NFKD", c) if c.isalpha() else c for c in text.translate(_PLAIN)):
        if unicodedata.combining(character):
            if base.isascii():
                continue
        else:
            base = character
        kept.append(character)
    return unicodedata.normalize("NFC", "".join(kept))


class EnglishVoice:
    """A voice of English. It warns, once for each, of scripts that the voice leaves out or spells.

    Args:
        voice: speaks.
        name: of the voice, for the warning.
        plain: the voice knows no letters with accents, and is given plain ones.
    """

    def __init__(self, voice: Synthesiser, name: str, plain: bool) -> None:
        self._voice, self._name, self._plain = voice, name, plain
        self._told: set[str] = set()

    def speak(self, text: str, *, speed: float = 1.0, pitch: float = 0.0) -> Iterator[Speech]:
        """See `Synthesiser.speak`."""
        new = [script for script in foreign_scripts(text) if script not in self._told]
        if new:
            self._told.update(new)
            log.warning(
                "the voice %s cannot say %s letters: it leaves them out, or spells them; espeak:LANGUAGE says those of "
                "its language, and `espeak-ng --voices` lists the languages",
                self._name,
                " and ".join(new),
            )
        yield from self._voice.speak(plain_latin(text) if self._plain else text, speed=speed, pitch=pitch)
