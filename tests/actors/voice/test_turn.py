from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from actors.voice.config import TurnConfig
from actors.voice.stt import Whisper
from actors.voice.turn import SmartTurn, open_end_of_turn, silence_needed, words_finished
from characters.assets import SILERO
from characters.errors import UserError
from tests.actors.voice.sounds import join, noise, say, to_hearing_rate

FINISHED = ["What is your name?", "Can you tell me a joke?", "My favourite colour is green.", "I live in a small town."]
UNFINISHED = ["My name is,", "I would like to know if the,", "Well I was thinking about um,", "My favourite colour is,"]
ENGINES = ["espeak:en-us", "hibari", "flite:rms", "flite:slt"]


def test_finished_and_unfinished_turns(
    whisper: Whisper, smart_turn: SmartTurn, capsys: pytest.CaptureFixture[str]
) -> None:
    config = TurnConfig()
    needed: dict[bool, list[int]] = {True: [], False: []}
    times = []
    for engine in ENGINES:
        for finished, texts in ((True, FINISHED), (False, UNFINISHED)):
            for text in texts:
                sound = to_hearing_rate(join(noise(0.3), say(text, engine), noise(config.pause_ms / 1000)))
                begin = time.perf_counter()
                probability = smart_turn.probability(sound)
                times.append(time.perf_counter() - begin)
                needed[finished].append(silence_needed(probability, whisper.transcribe(sound).text, config))
    with capsys.disabled():
        print(
            f"\nend of turn: network {np.median(times) * 1000:.0f} ms median; silence waited for, ms (share of turns):"
        )
        for finished, values in needed.items():
            shares = {ms: f"{values.count(ms) / len(values):.0%}" for ms in sorted(set(values))}
            print(f"  {'finished' if finished else 'unfinished'}: {shares}")
    assert np.mean(np.array(needed[True]) <= config.unsure_ms) >= 0.9
    assert np.median(needed[True]) == config.min_endpointing_delay_ms
    assert np.mean(np.array(needed[False]) >= config.unsure_ms) >= 0.6  # these voices do not sound unfinished
    assert np.median(needed[False]) == config.max_endpointing_delay_ms


@pytest.mark.parametrize(
    ("text", "finished"),
    [
        ("What is your name?", True),
        ("What are you?", True),
        ("Who is it?", True),
        ("My name is", False),
        ("I went to the", False),
        ("I think that...", False),
        ("Well, um", False),
        ("I like green tea.", True),
        ("Yes.", True),
        ("Stop", None),
        ("Stop.", True),
        ("In the", False),
        ("Green", None),
        ("", None),
        ("?!", None),
    ],
)
def test_words(text: str, finished: bool | None) -> None:
    assert words_finished(text) is finished


def test_without_the_network_words_and_silence_decide() -> None:
    config = TurnConfig()
    assert silence_needed(None, "What is your name?", config) == config.min_endpointing_delay_ms
    assert silence_needed(None, "Green", config) == config.unsure_ms
    assert silence_needed(None, "My name is", config) == config.max_endpointing_delay_ms
    assert open_end_of_turn(TurnConfig(model="off")) is None


def test_a_wrong_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        open_end_of_turn(TurnConfig(model=str(tmp_path / "none.onnx")))
    (tmp_path / "bad.onnx").write_bytes(b"nonsense")
    with pytest.raises(UserError, match="not an ONNX network"):
        open_end_of_turn(TurnConfig(model=str(tmp_path / "bad.onnx")))
    with pytest.raises(UserError, match="not a smart-turn"):
        open_end_of_turn(TurnConfig(model=str(SILERO.file("silero_vad_v6.onnx"))))


@pytest.mark.parametrize(
    "text",
    ["My number is 555.", "555, 0123.", "My phone number is five five five", "It's 4 9 3", "The code is A 7",
     "My email is ann dot", "My name is spelled Z O", "Sure, 0170 44", "My card number is 4111 1111."],
)  # fmt: skip
def test_a_number_with_pauses_is_waited_for(text: str) -> None:
    assert silence_needed(0.9, text, TurnConfig()) == 1400


@pytest.mark.parametrize(
    "text",
    [
        "How much is seven times eight?",
        "I am 35.",
        "I have two dogs.",
        "It was in 1984.",
        "That's number one, I think.",
    ],
)
def test_a_number_that_is_no_dictation_is_not(text: str) -> None:
    assert silence_needed(0.9, text, TurnConfig()) < 1000
