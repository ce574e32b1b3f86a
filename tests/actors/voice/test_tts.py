from __future__ import annotations

import stat
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from actors.voice.config import TtsConfig
from actors.voice.events import TurnTrace
from actors.voice.parts import Parts
from actors.voice.reply import Reply
from actors.voice.tts import PiperVoice, Speaker, open_speaker, word_times
from characters.character import Voice
from characters.chunk import SAMPLE_RATE
from characters.errors import UserError
from characters.speech import Phoneme, Speech


def test_a_clause_starts_at_once_and_times_its_words(loaded: Parts, capsys: pytest.CaptureFixture[str]) -> None:
    times = []
    for text in ("Hello there,", "My name is Leila.", "It's lovely to hear you."):
        begin = time.perf_counter()
        clause = loaded.speaker.say(text)
        times.append(time.perf_counter() - begin)
        assert clause.pcm.dtype == np.float32 and clause.pcm.ndim == 1
        assert np.abs(clause.pcm[: SAMPLE_RATE // 20]).max() > 0.01  # sound within 50 ms
        assert [w.text for w in clause.words] == text.split()
        assert all(a.end == b.start and a.end > a.start for a, b in zip(clause.words, clause.words[1:], strict=False))
        assert clause.words[0].start < SAMPLE_RATE // 10
        assert 0 < len(clause.pcm) - clause.words[-1].end < SAMPLE_RATE // 2
    with capsys.disabled():
        print(f"\ntext to speech: {np.median(times) * 1000:.0f} ms median a clause")


def test_word_times_follow_the_sound(loaded: Parts) -> None:
    """The gap between two words stands where there is silence in the sound."""
    clause = loaded.speaker.say("Yesterday: tomorrow.")
    border = clause.words[1].start
    quiet = np.convolve(np.abs(clause.pcm), np.ones(480) / 480, "same") < 0.01
    inner = np.flatnonzero(quiet[2400 : clause.words[-1].end - 2400]) + 2400
    assert len(inner) and np.abs(inner - border).min() < 0.15 * SAMPLE_RATE


def test_word_times_without_phonemes() -> None:
    words = word_times("ab cdef - 1", [], 1.0)
    assert [(w.text, w.start) for w in words] == [("ab", 0), ("cdef", 4800), ("1", 14400)]
    assert words[-1].end == SAMPLE_RATE
    assert word_times("!", [Phoneme("a", 0, 1)], 1.0) == ()


class Tone:
    """A voice of 1 s a sentence, with silence around it."""

    def speak(self, text: str, *, speed: float = 1.0, pitch: float = 0.0) -> Iterator[Speech]:
        pcm = np.zeros(2 * SAMPLE_RATE, np.float32)
        pcm[SAMPLE_RATE // 2 : SAMPLE_RATE * 3 // 2] = 0.5
        yield Speech(pcm, [Phoneme("", 0, 0.5), Phoneme("a", 0.5, 1.5), Phoneme("", 1.5, 2)])


def test_silence_around_the_voice_goes() -> None:
    clause = Speaker(Tone()).say("Hello you.")
    assert len(clause.pcm) == pytest.approx(1.38 * SAMPLE_RATE, abs=100)
    assert clause.words[0].start == pytest.approx(0.03 * SAMPLE_RATE, abs=10)


def test_a_reply_goes_on_from_the_word_that_was_cut() -> None:
    speaker = Speaker(Tone())
    reply = Reply(7, TurnTrace(1))
    reply.add(speaker.say("aaaa bbbb cccc dddd."))
    reply.add(speaker.say("eeee."))
    first, second = reply.unsent()
    assert (first.response_id, first.start, second.start) == (7, 0, len(first.pcm)) and reply.unsent() == []
    reply.played = 10_000  # 0.42 s: in the middle of the second word
    assert reply.heard_text() == "aaaa bbbb" or reply.heard_text() == "aaaa"
    cut = first.words[1].start
    reply.rewind(8)
    again, last = reply.unsent()
    assert (again.response_id, again.start, again.text) == (8, 0, "bbbb cccc dddd.")
    np.testing.assert_array_equal(again.pcm, first.pcm[cut:])
    assert again.words[0].start == 0 and last.start == len(again.pcm)
    reply.complete, reply.played = True, reply.made
    assert reply.heard_text() == "aaaa bbbb cccc dddd. eeee." and reply.left_ms() == 0


def test_piper_is_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    program = tmp_path / "piper"
    program.write_text("#!/bin/sh\ncat > /dev/null\nhead -c 32000 /dev/zero | tr '\\000' '\\100'\n")
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    with pytest.raises(UserError, match="must exist"):
        PiperVoice(str(tmp_path / "voice.onnx"))
    (tmp_path / "voice.onnx").write_bytes(b"")
    (tmp_path / "voice.onnx.json").write_text('{"audio": {"sample_rate": 16000}}')
    speaker = open_speaker(TtsConfig(engine=f"piper:{tmp_path}/voice.onnx"), Voice())
    assert len(speaker.say("Hello.").pcm) == pytest.approx(1.3 * SAMPLE_RATE, rel=0.05)
    program.write_text("#!/bin/sh\necho broken >&2\nexit 3\n")
    with pytest.raises(UserError, match="piper failed: broken"):
        speaker.say("Hello.")
    (tmp_path / "voice.onnx.json").write_text("[]")
    with pytest.raises(UserError, match="sample_rate"):
        PiperVoice(str(tmp_path / "voice.onnx"))


def test_unknown_engines_are_refused() -> None:
    with pytest.raises(UserError, match="no voice 'nobody'"):
        open_speaker(TtsConfig(engine="nobody"), Voice())
