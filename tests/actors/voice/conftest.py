"""The real parts, loaded once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from actors.voice.config import VoiceConfig
from actors.voice.parts import OpenParts, Parts, load_parts
from actors.voice.protocols import LanguageModel
from actors.voice.stt import Whisper
from actors.voice.turn import SmartTurn
from characters.character import load_character


@pytest.fixture(scope="session")
def open_parts() -> OpenParts:
    return load_parts(VoiceConfig())


@pytest.fixture(scope="session")
def loaded(open_parts: OpenParts) -> Parts:
    return open_parts(load_character("leila").character)


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
def make_parts(open_parts: OpenParts) -> Callable[..., Parts]:
    """Parts for one session of Leila's, with another language model if one is given."""

    def make(model: LanguageModel | None = None) -> Parts:
        parts = open_parts(load_character("leila").character)
        return replace(parts, model=model) if model else parts

    return make
