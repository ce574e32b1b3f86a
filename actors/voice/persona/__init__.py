"""The scripted persona: a conversation without a language model, a network or a key."""

from __future__ import annotations

from actors.voice.persona.persona import ScriptedPersona

__all__ = ["ScriptedPersona"]
