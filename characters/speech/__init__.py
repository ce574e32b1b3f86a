"""Text to speech. hibari is a pip package; espeak-ng and flite are separate programs, which are optional."""

from __future__ import annotations

from characters.errors import UserError
from characters.speech.base import Phoneme, Speech, Synthesiser
from characters.speech.letters import EnglishVoice

__all__ = ["Phoneme", "Speech", "Synthesiser", "open_voice"]


def open_voice(engine: str = "hibari") -> Synthesiser:
    """Opens a voice by name: "hibari", "espeak", "espeak:en+f2", "flite", "flite:rms".

    The log warns of letters that it cannot say.

    Raises:
        UserError: the engine is unknown or not installed.
    """
    name, _, voice = engine.partition(":")
    if name == "hibari" and not voice:
        from characters.speech.hibari import HibariVoice

        return EnglishVoice(HibariVoice(), engine, plain=True)
    if name == "espeak":
        from characters.speech.espeak import EspeakVoice

        spoken = EspeakVoice(voice or "en-us")
        return EnglishVoice(spoken, engine, plain=False) if spoken.voice.startswith("en") else spoken
    if name == "flite":
        from characters.speech.flite import FliteVoice

        return EnglishVoice(FliteVoice(voice or "slt"), engine, plain=True)
    raise UserError(f"There is no voice {engine!r}; try hibari, espeak, espeak:en+f2, flite or flite:rms.")
