"""Text to speech. hibari is a pip package; espeak-ng and flite are separate programs, which are optional."""

from __future__ import annotations

from characters.errors import UserError
from characters.speech.base import Phoneme, Speech, Synthesiser

__all__ = ["Phoneme", "Speech", "Synthesiser", "open_voice"]


def open_voice(engine: str = "hibari") -> Synthesiser:
    """Opens a voice by name: "hibari", "espeak", "espeak:en+f2", "flite", "flite:rms".

    Raises:
        UserError: the engine is unknown or not installed.
    """
    name, _, voice = engine.partition(":")
    if name == "hibari" and not voice:
        from characters.speech.hibari import HibariVoice

        return HibariVoice()
    if name == "espeak":
        from characters.speech.espeak import EspeakVoice

        return EspeakVoice(voice or "en-us")
    if name == "flite":
        from characters.speech.flite import FliteVoice

        return FliteVoice(voice or "slt")
    raise UserError(f"There is no voice {engine!r}; try hibari, espeak, espeak:en+f2, flite or flite:rms.")
