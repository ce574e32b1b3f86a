from __future__ import annotations

import numpy as np
import pytest

from actors.voice.config import VadConfig, VoiceConfig
from actors.voice.listener import Heard, Listener
from actors.voice.vad import SileroVad, VoiceGate
from characters.chunk import SAMPLE_RATE
from tests.actors.voice.sounds import burst, cough, join, noise, say

ENGINES = ["espeak:en-us", "hibari", "flite:rms"]


def heard(pcm: np.ndarray, rate: int = SAMPLE_RATE, onset_ms: int = 96) -> tuple[list[tuple[float, Heard]], Listener]:
    """What a listener makes of a sound fed in 20 ms blocks; times in seconds from its start."""
    listener = Listener(VoiceConfig(), SileroVad())
    listener.onset_ms = onset_ms
    block = rate // 50
    events = []
    for start in range(0, len(pcm), block):
        for window in listener.push(pcm[start : start + block], rate):
            for what in listener.judge(window):
                if what is not Heard.WINDOW:
                    events.append(((start + block) / rate, what))
    return events, listener


@pytest.mark.parametrize("engine", ENGINES)
def test_speech_makes_an_onset_and_a_pause(engine: str) -> None:
    speech = say("What is your name?", engine)
    events, listener = heard(join(noise(1), speech, noise(1)))
    assert events[0][1] is Heard.ONSET
    assert events[-1][1] is Heard.PAUSE
    assert 1.0 < events[0][0] < 1.3
    assert abs(listener.onset / 16000 - 1.0) < 0.15
    assert abs(listener.voice_end / 16000 - (1 + len(speech) / SAMPLE_RATE)) < 0.3
    assert listener.sound()[: 16000 // 4].std() < 0.01  # the pre-roll is what was before the voice


def test_rates_and_types_hear_the_same() -> None:
    pcm = join(noise(0.5), say("Tell me a joke."), noise(0.6))
    want = [what for _, what in heard(pcm)[0]]
    up = np.interp(np.arange(0, len(pcm), 0.5), np.arange(len(pcm)), pcm).astype(np.float32)
    stereo = np.stack([up, up], axis=1)
    assert [what for _, what in heard((stereo * 32767).astype(np.int16), 48000)[0]] == want


@pytest.mark.parametrize(
    "sound",
    [cough(), burst(60, 100, 1500), burst(40, 500, 7000), burst(700, 3000, 11000), noise(3, 0.2), noise(3, 0.02)],
    ids=["cough", "knock", "clap", "hiss", "loud noise", "hum"],
)
def test_noises_make_no_onset(sound: np.ndarray) -> None:
    assert heard(join(noise(0.5), sound, noise(0.5)), onset_ms=64)[0] == []


def test_barge_in_onset_is_quick(capsys: pytest.CaptureFixture[str]) -> None:
    """From the beginning of the voice; an unvoiced sound before it ("s") is counted apart."""
    voice, sound = [], []
    for engine in [*ENGINES, "flite:slt"]:
        for text in ("Stop, wait.", "What is that?", "No, I mean tea.", "Can I ask?", "Hold on.", "Sorry, what?"):
            speech = say(text, engine)
            smooth = np.convolve(speech, np.ones(48) / 48, "same")  # a low-pass: what is left is voice
            begin = np.flatnonzero(np.abs(smooth) > 0.02)[0] / SAMPLE_RATE
            for shift in (0.0, 0.011, 0.023):
                events, _ = heard(join(noise(0.5 + shift), speech), onset_ms=64)
                sound.append(events[0][0] - 0.5 - shift)
                voice.append(sound[-1] - begin)
    with capsys.disabled():
        print(f"\nonset decided after, ms of {len(voice)} trials:  p50  p95")
        for name, values in (("the voice begins", voice), ("any sound begins", sound)):
            print(f"  {name:<34}{np.percentile(values, 50) * 1000:6.0f}{np.percentile(values, 95) * 1000:6.0f}")
    assert np.percentile(voice, 95) <= 0.150


def test_hysteresis() -> None:
    gate = VoiceGate(VadConfig(start=0.5, stop=0.3))
    states = []
    for probability in (0.4, 0.5, 0.4, 0.31, 0.29, 0.4, 0.6):
        gate.push(probability)
        states.append(gate.voiced)
    assert states == [False, True, True, True, False, False, True]
    assert (gate.voiced_ms(), gate.run_ms(), gate.silent_ms()) == (4 * 32, 32, 0)


def test_long_sound_is_cut_into_what_can_be_transcribed() -> None:
    class Always:
        def probability(self, window: np.ndarray) -> float:
            return 1.0

        def reset(self) -> None: ...

    listener = Listener(VoiceConfig(), Always())
    events: list[Heard] = []
    for window in listener.push(np.zeros(16000 * 29, np.float32), 16000):
        events += listener.judge(window)
    assert events.count(Heard.FULL) >= 1 and Heard.TOO_LONG not in events
    assert len(listener.take()) <= 16000 * 30
    for window in listener.push(np.zeros(16000 * 29, np.float32), 16000):
        events += listener.judge(window)
    listener.take()
    for window in listener.push(np.zeros(16000 * 5, np.float32), 16000):
        events += listener.judge(window)
    assert Heard.TOO_LONG in events
