import numpy as np
import pytest

from characters.speech import open_voice
from characters.speech.base import Phoneme
from characters.training.visemes import TARGETS, mouth_curves, sounds

OPEN, WIDE, ROUND, TEETH, TONGUE = range(5)


def say(*symbols: str, length: float = 0.1) -> np.ndarray:
    """Curves of equally long phonemes between two pauses, at even loudness. [frames, 5]"""
    phonemes = [Phoneme(s, i * length, (i + 1) * length) for i, s in enumerate(["", *symbols, ""])]
    frames = int(phonemes[-1].end * 24)
    pcm = np.full(frames * 1000, 0.1, np.float32)
    return mouth_curves(phonemes, pcm, frames)


@pytest.mark.parametrize("length", [0.03, 0.06, 0.1])
@pytest.mark.parametrize("offset", [0.0, 0.013, 0.027])
@pytest.mark.parametrize("lips", ["p", "b", "m"])
def test_lips_close_whatever_the_phase_and_length(lips: str, length: float, offset: float) -> None:
    start = 0.5 + offset
    phonemes = [
        Phoneme("ɑ", 0.1, start),
        Phoneme(lips, start, start + length),
        Phoneme("ɑ", start + length, 1.0),
    ]
    curves = mouth_curves(phonemes, np.full(24_000, 0.1, np.float32), 24)
    assert curves[10:16, OPEN].min() < 0.02
    assert curves[6, OPEN] > 0.6
    assert curves[18, OPEN] > 0.6


def test_lower_lip_meets_teeth() -> None:
    curves = say("ɑ", "f", "ɑ")
    middle = np.argmax(curves[:, TEETH])
    assert curves[middle, TEETH] > 0.95
    assert curves[middle, OPEN] < 0.12


@pytest.mark.parametrize(("symbol", "rounded"), [("u", True), ("w", True), ("ʃ", True), ("i", False), ("s", False)])
def test_rounding(symbol: str, rounded: bool) -> None:
    curves = say("ə", symbol, symbol, "ə")
    middle = len(curves) // 2
    assert (curves[middle, ROUND] > 0.5) == rounded
    assert (curves[middle, WIDE] < -0.2) == rounded


def test_vowels_differ() -> None:
    peaks = {v: say(v, v)[:, OPEN].max() for v in "ɑɛiu"}
    assert peaks["ɑ"] > 0.8 > peaks["ɛ"] > 0.4 > peaks["i"] > 0.15
    assert say("i", "i")[:, WIDE].max() > 0.7
    assert say("θ", "θ")[:, TONGUE].max() > 0.7


def test_loud_opens_wider() -> None:
    phonemes = [Phoneme("ɑ", 0.0, 0.5), Phoneme("ɑ", 0.5, 1.0)]
    pcm = np.concatenate([np.full(12_000, 0.02), np.full(12_000, 0.2)]).astype(np.float32)
    curves = mouth_curves(phonemes, pcm, 24)
    assert curves[18, OPEN] > 1.2 * curves[5, OPEN] > 0.3


def test_pause_is_shut_and_ranges_hold() -> None:
    curves = say("", "ɑ", "i", "w", "b", "θ", "", "", "", "")
    assert np.abs(curves[-3:]).max() < 1e-3
    assert curves.dtype == np.float32
    assert (curves >= [0, -1, 0, 0, 0]).all()
    assert (curves <= 1).all()


@pytest.mark.parametrize("engine", ["hibari", "espeak:en-us", "espeak:en-gb-x-rp", "flite:slt"])
def test_every_symbol_of_every_engine_is_known(engine: str) -> None:
    text = (
        "The quick brown fox jumps over the lazy dog. Joyful children usually hear thirty voices now. "
        "She chews a huge orange, though it's pure leisure. Bottle, button, sure, fire, our poor bird."
    )
    for speech in open_voice(engine).speak(text):
        unknown = [p.symbol for p in speech.phonemes if p.symbol and not sounds(p.symbol)]
        assert not unknown
        assert all(s in TARGETS for p in speech.phonemes for s in sounds(p.symbol))


@pytest.mark.parametrize("engine", ["hibari", "espeak:en-us", "flite:slt"])
def test_engines_close_their_lips(engine: str) -> None:
    (speech,) = open_voice(engine).speak("Mama, maybe Bob became a pop poet.")
    curves = mouth_curves(speech.phonemes, speech.pcm, len(speech.pcm) // 1000)
    closures = [p for p in speech.phonemes if p.symbol in "pbm" and p.symbol]
    assert len(closures) >= 8
    for p in closures:
        first = int(p.start * 24)
        assert curves[max(first - 1, 0) : int(p.end * 24) + 2, OPEN].min() < 0.03
    assert curves[:, OPEN].max() > 0.6
