"""Makes the speech that the video model learns from: log-mel features and mouth curves.

    python -m characters.training.speech_corpus --out DIR --minutes 70

Writes DIR/speech.npz with
    mel         uint8 [4 V, 80], `audio_features.quantise`d log-mel
    mouth       float16 [V, 5], MOUTH_CHANNELS of chunk.py, one row a video frame
    utterances  int32 [n, 3]: first video frame, frames (a multiple of 4), voice family (`FAMILIES`)

An utterance is a few sentences of one voice, with pauses between them, through one recording chain. The flite voices
are left out on purpose: a trained model is tested on them.

One seed gives one file with the same versions of hibari-tts, onnxruntime, numpy and espeak-ng; other versions or
processors give an equivalent file.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from characters.chunk import FPS, FRAMES_PER_CHUNK, MOUTH_CHANNELS, SAMPLE_RATE, SAMPLES_PER_CHUNK
from characters.errors import UserError
from characters.generate.hearing import log_mel, quantise
from characters.output import check_output, whole_file, write_error
from characters.speech.base import Phoneme, Speech, Synthesiser, resample
from characters.speech.espeak import EspeakVoice
from characters.speech.hibari import HibariVoice
from characters.training.align import Aligner
from characters.training.sentences import sentences
from characters.training.visemes import mouth_curves

FAMILIES = ("hibari", "espeak", "flite", "silence")
SHARES = {"hibari": 0.55, "espeak": 0.38, "silence": 0.07}
ALIGNED = 200  # sentences to which the aligner is fitted

ESPEAK_VOICES = (
    *("en", "en+f4", "en+m2", "en+klatt4", "en-gb-x-rp", "en-gb-scotland", "en-us", "en-us+f1", "en-us+f2", "en-us+f3"),
    *("en-us+f4", "en-us+m1", "en-us+m3", "en-us+m4", "en-us+m5", "en-us+m6", "en-us+m7", "en-us+m8", "en-us+klatt"),
    *("en-us+klatt2", "en-us+klatt5", "en-us+Andy", "en-us+Annie", "en-us+Gene", "en-us+steph", "en-us+Michael"),
    *("en-us+Alicia", "en-us+Mario", "en-us+Denis", "en-us+aunty", "en-us+travis", "en-us+shelby"),
)
HELD_OUT_ESPEAK_VOICE = "en-us+f5"


@dataclass(frozen=True, slots=True)
class Utterance:
    """pcm float32 [frames * 1000], mouth float32 [frames, 5]; frames is a multiple of 4."""

    pcm: np.ndarray
    mouth: np.ndarray


def warp(speech: Speech, factor: float) -> Speech:
    """Plays speech `factor` times as fast. Pitch, formants and pace change together, as of another speaker."""
    pcm = resample(speech.pcm, SAMPLE_RATE * factor)
    return Speech(pcm, [Phoneme(p.symbol, p.start / factor, p.end / factor) for p in speech.phonemes])


def join(parts: list[Speech], pauses: list[float]) -> Utterance:
    """Clean speech with pauses[i] seconds before part i and the last pause after it all, padded to a whole chunk."""
    pieces, phonemes, time = [], [], 0
    for part, pause in zip([*parts, Speech(np.zeros(0, np.float32))], pauses, strict=True):
        silence = round(pause * SAMPLE_RATE)
        pieces += [np.zeros(silence, np.float32), part.pcm]
        start = (time + silence) / SAMPLE_RATE
        phonemes += [Phoneme(p.symbol, p.start + start, p.end + start) for p in part.phonemes]
        time += silence + len(part.pcm)
    pieces.append(np.zeros(-time % SAMPLES_PER_CHUNK, np.float32))
    pcm = np.concatenate(pieces)
    return Utterance(pcm, mouth_curves(phonemes, pcm, len(pcm) * FPS // SAMPLE_RATE))


def _noise(rng: np.random.Generator, samples: int) -> np.ndarray:
    """float32 [samples] of unit power: white, pink or brown, at random."""
    spectrum = np.fft.rfft(rng.standard_normal(samples))
    tilt = np.maximum(np.linspace(0, SAMPLE_RATE / 2, len(spectrum)), 30.0) ** -rng.choice([0.0, 0.5, 1.0])
    noise = np.fft.irfft(spectrum * tilt, samples)
    return (noise / np.sqrt((noise**2).mean() + 1e-12)).astype(np.float32)


def record(pcm: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Clean float32 [n] -> the same through a random recording chain: room, equaliser, band limit, gain, noise."""
    out = pcm / (np.abs(pcm).max() + 1e-6) * 0.9
    size = len(out) + SAMPLE_RATE // 2
    frequencies = np.linspace(0, SAMPLE_RATE / 2, size // 2 + 1)
    response = np.ones(len(frequencies), np.complex128)
    if rng.random() < 0.25:  # a room: a decaying tail of noise behind the direct sound
        decay = rng.uniform(0.03, 0.12)
        tail = rng.standard_normal(SAMPLE_RATE // 2) * np.exp(-np.arange(SAMPLE_RATE // 2) / (SAMPLE_RATE * decay))
        tail *= rng.uniform(0.1, 0.45) / np.sqrt((tail**2).sum())
        response += np.fft.rfft(tail, size) * np.exp(-2j * np.pi * frequencies * 0.004)
    if rng.random() < 0.8:
        knots = np.array([0, 120, 300, 700, 1500, 3000, 5000, 8000, 12000])
        response *= 10 ** (np.interp(frequencies, knots, rng.uniform(-8, 8, len(knots))) / 20)
    if rng.random() < 0.2:
        response *= 1 / (1 + (frequencies / rng.uniform(3400, 8000)) ** 12)
    out = np.fft.irfft(np.fft.rfft(out, size) * response, size)[: len(out)]
    out *= 10 ** (rng.uniform(-20, 0) / 20) / (np.abs(out).max() + 1e-6)
    if rng.random() < 0.8:
        level = np.sqrt((out**2).mean()) * 10 ** (-rng.uniform(15, 55) / 20)
        out = out + _noise(rng, len(out)) * level
    return np.clip(out, -1, 1).astype(np.float32)


class _Voices:
    """Opens each voice once, and varies its pace, pitch and resampling, as of other speakers."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._text = sentences(rng)
        self._hibari = HibariVoice()
        self._espeak: dict[str, EspeakVoice] = {}
        examples = [s for _ in range(ALIGNED) for s in self._hibari.speak(next(self._text))]
        self._aligner = Aligner(examples)

    def utterance(self, family: str) -> Utterance:
        """A few sentences of one voice of `family`, 4 to 12 s with pauses."""
        rng = self._rng
        voice: Synthesiser = self._hibari
        if family == "espeak":
            name = ESPEAK_VOICES[rng.integers(len(ESPEAK_VOICES))]
            voice = self._espeak.setdefault(name, EspeakVoice(name))
        factor = float(np.exp(rng.uniform(np.log(0.74), np.log(1.3)))) if rng.random() < 0.6 else 1.0
        speed, pitch = rng.uniform(0.8, 1.25) / np.sqrt(factor), rng.normal(0, 2.5) if rng.random() < 0.5 else 0.0
        parts: list[Speech] = []
        wanted = rng.uniform(3, 10)
        while sum(len(p.pcm) for p in parts) < wanted * SAMPLE_RATE:
            for speech in voice.speak(next(self._text), speed=float(speed), pitch=float(np.clip(pitch, -8, 8))):
                refined = self._aligner.refine(speech) if family == "hibari" else speech
                parts.append(warp(refined, factor))
        pauses = rng.choice([0.0, 0.15, 0.4, 1.2], p=[0.35, 0.35, 0.2, 0.1], size=len(parts) + 1)
        return join(parts, list(pauses * rng.uniform(0.5, 1.5, len(pauses))))

    def silence(self) -> Utterance:
        """2 to 6 s without speech, the mouth shut: digital silence in a quarter of the cases, else noise."""
        rng = self._rng
        frames = int(rng.integers(12, 37)) * FRAMES_PER_CHUNK
        samples = frames * SAMPLE_RATE // FPS
        level = 0.0 if rng.random() < 0.25 else 10 ** (-rng.uniform(25, 75) / 20)
        # A slow swell: the model must not take noise that comes and goes for speech.
        swell = 1 + 0.8 * np.sin(np.linspace(0, rng.uniform(1, 12), samples) + rng.uniform(0, 6))
        pcm = (_noise(rng, samples) * level * swell).astype(np.float32)
        return Utterance(pcm, np.zeros((frames, len(MOUTH_CHANNELS)), np.float32))


def utterances(seed: int) -> Iterator[tuple[str, Utterance]]:
    """Endless (family, recorded utterance), in the proportions of `SHARES` by time."""
    rng = np.random.default_rng(seed)
    voices = _Voices(rng)
    made = dict.fromkeys(SHARES, 1e-6)
    while True:
        family = min(SHARES, key=lambda f: made[f] / SHARES[f])
        if family == "silence":
            utterance = voices.silence()
        else:
            clean = voices.utterance(family)
            utterance = Utterance(record(clean.pcm, rng), clean.mouth)
        made[family] += len(utterance.mouth)
        yield family, utterance


def build(out: Path, minutes: float, seed: int) -> Path:
    """Makes `minutes` of corpus and writes out/speech.npz.

    Raises:
        UserError: hibari-tts or espeak-ng is missing, or `out` cannot be written.
    """
    path = out / "speech.npz"
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_error(path, error) from error
    check_output(path)  # before hours are spent
    mel, mouth, table = [], [], []
    frames, wanted = 0, round(minutes * 60 * FPS)
    with tqdm(total=wanted, unit="frame", desc="speech") as progress:
        for family, utterance in utterances(seed):
            mel.append(quantise(log_mel(utterance.pcm)))
            mouth.append(utterance.mouth.astype(np.float16))
            table.append((frames, len(utterance.mouth), FAMILIES.index(family)))
            frames += len(utterance.mouth)
            progress.update(len(utterance.mouth))
            if frames >= wanted:
                break
    with whole_file(path) as file:
        np.savez_compressed(
            file,
            mel=np.concatenate(mel),
            mouth=np.concatenate(mouth),
            utterances=np.array(table, np.int32),
        )
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the speech corpus that the video model learns from.")
    parser.add_argument("--out", type=Path, required=True, help="folder for speech.npz")
    parser.add_argument("--minutes", type=float, default=70.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    try:
        print(build(arguments.out, arguments.minutes, arguments.seed))
    except UserError as error:
        parser.exit(2, f"error: {error}\n")


if __name__ == "__main__":
    main()
