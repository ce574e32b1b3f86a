"""Letters that an English voice has no sounds for."""

from __future__ import annotations

import pytest

from actors.voice.config import TtsConfig
from actors.voice.tts import open_speaker
from characters.character import Voice
from characters.speech import open_voice
from characters.speech.letters import foreign_scripts, log, plain_latin


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the log is told."""
    lines: list[str] = []
    monkeypatch.setattr(log, "warning", lambda message, *values: lines.append(message % values))
    return lines


@pytest.mark.parametrize("engine", ["hibari", "flite", "espeak"])
def test_the_log_names_a_script_once(engine: str, told: list[str]) -> None:
    speaker = open_speaker(TtsConfig(engine="character"), Voice(engine=engine))
    for text in ("I am Zoë and he is 安娜.", "Ask 安娜 about Москва."):
        assert len(speaker.say(text).pcm) > 5000
    for script, line in zip(("CJK", "Cyrillic"), told, strict=True):
        assert f"the voice {engine} cannot say {script} letters" in line


def test_a_voice_of_another_language_is_left_alone(told: list[str]) -> None:
    assert len(next(open_voice("espeak:ru").speak("Привет.")).pcm) > 5000
    assert not told


@pytest.mark.parametrize("engine", ["hibari", "flite"])
@pytest.mark.parametrize(("written", "plain"), [("Zoë.", "Zoe."), ("Émile.", "Emile."), ("Straße.", "Strasse.")])
def test_accents_drop_no_letter(engine: str, written: str, plain: str) -> None:
    one, other = (next(open_voice(engine).speak(text)).phonemes for text in (written, plain))
    assert [p.symbol for p in one] == [p.symbol for p in other]


def test_which_letters_are_meant() -> None:
    assert foreign_scripts("Zoë, Łukasz, ½ ﬁ Ｈｉ 𝐇𝐢 98.6 ☺") == []
    assert foreign_scripts("राम かな カナ 안나") == ["Devanagari", "Hangul", "Hiragana", "Katakana"]
    assert (
        plain_latin(
            "Łukasz, señor, 𝐇𝐢 Ｈｉ, ½, 안나, राम, é",
        )
        == "Lukasz, senor, Hi Hi, ½, 안나, राम, e"
    )
