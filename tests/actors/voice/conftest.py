"""The real parts, loaded once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from actors.voice.config import VoiceConfig
from actors.voice.parts import Parts, open_parts
from actors.voice.persona import ScriptedPersona
from actors.voice.protocols import LanguageModel
from actors.voice.stt import Whisper
from actors.voice.turn import SmartTurn
from actors.voice.vad import SileroVad
from characters.character import load_character


@pytest.fixture(scope="session")
def loaded() -> Parts:
    """Everything that `open_parts` opens by default, warmed up."""
    parts = open_parts(VoiceConfig(), load_character("leila").character)
    parts.warm_stt()
    parts.warm_tts()
    return parts


@pytest.fixture(scope="session")
def whisper(loaded: Parts) -> Whisper:
    assert isinstance(loaded.stt, Whisper)
    return loaded.stt


@pytest.fixture(scope="session")
def smart_turn(loaded: Parts) -> SmartTurn:
    assert isinstance(loaded.end_of_turn, SmartTurn), (
        "install pipecat-ai for its network: pip install --no-deps pipecat-ai"
    )
    return loaded.end_of_turn


@pytest.fixture
def make_parts(loaded: Parts) -> Callable[..., Parts]:
    """Parts for one session: the heavy ones are shared, the session's state is fresh."""

    def make(model: LanguageModel | None = None, character: str = "leila") -> Parts:
        persona = model or ScriptedPersona(load_character(character).character)
        return Parts(SileroVad(), loaded.end_of_turn, loaded.stt, persona, loaded.speaker)

    return make
