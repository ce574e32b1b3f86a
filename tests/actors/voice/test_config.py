from __future__ import annotations

from pathlib import Path

import pytest

from actors.voice.config import VoiceConfig
from actors.voice.parts import load_parts
from characters.config import load_yaml
from characters.errors import UserError


def load(tmp_path: Path, text: str) -> VoiceConfig:
    (tmp_path / "voice.yaml").write_text(text)
    return load_yaml(tmp_path / "voice.yaml", VoiceConfig)


def test_from_yaml(tmp_path: Path) -> None:
    config = load(tmp_path, "llm: {engine: openai, model: m, base_url: http://127.0.0.1:1/v1}\nstt: {threads: 2}\n")
    assert config.llm.model == "m" and config.stt.threads == 2 and config.turn == VoiceConfig().turn


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("llm: {engine: openai}", "must name a model"),
        ("llm: {engine: magic}", "one of persona, openai"),
        ("stt: {engine: magic}", "one of whisper, openai"),
        ("stt: {threads: 0}", "must be positive"),
        ("vad: {start: 0.2}", "stop <= start"),
        ("turn: {pause_ms: 900}", "pause_ms <= min_endpointing_delay_ms"),
        ("barge_in: {min_interruption_duration_ms: 2000}", "min_interruption_duration_ms <= confirm_ms"),
        ("tts: {lead_s: 0}", "lead_s"),
        ("history_messages: 0", "at least 2"),
        ("llm: {api_key: secret}", "unknown key 'llm.api_key'"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load(tmp_path, text)


def test_a_missing_key_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MY_KEY", raising=False)
    for part in ("llm", "stt", "tts"):
        config = load(tmp_path, f"{part}: {{engine: openai, model: m, key_variable: MY_KEY}}")
        with pytest.raises(UserError, match="set the environment variable MY_KEY"):
            load_parts(config)
