"""From phonemes and loudness to the curves of a mouth.

Each phoneme has a target for every mouth channel; smoothing in time blends neighbours (coarticulation). Smoothing would
leave lips ajar that must meet. So closures are cut into the smoothed curve afterwards, and last long enough for one
video frame to show them. The jaw opens further on loud sound, so the opening follows stress.

Targets follow common viseme tables (e.g. Microsoft's 22 visemes and the Oculus 15), drawn for this renderer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from characters.chunk import FPS, MOUTH_CHANNELS, SAMPLE_RATE
from characters.speech.base import Phoneme

# ipa symbols: open, wide, round, teeth, tongue
_TABLE = {
    "ɑa": (0.95, 0.10, 0.0, 0.30, 0.2),
    "æ": (0.80, 0.45, 0.0, 0.45, 0.3),
    "ʌɐ": (0.62, 0.05, 0.0, 0.30, 0.2),
    "əᵊ": (0.42, 0.05, 0.0, 0.30, 0.2),
    "ɚɜ": (0.40, -0.20, 0.4, 0.30, 0.3),
    "ɛe": (0.58, 0.40, 0.0, 0.45, 0.3),
    "ɪᵻɨ": (0.36, 0.50, 0.0, 0.50, 0.3),
    "i": (0.28, 0.90, 0.0, 0.65, 0.2),
    "u": (0.24, -0.70, 1.0, 0.00, 0.0),
    "ʊ": (0.32, -0.50, 0.8, 0.05, 0.1),
    "ɔɒ": (0.72, -0.30, 0.6, 0.10, 0.1),
    "o": (0.55, -0.50, 0.8, 0.05, 0.1),
    "pbm": (0.00, 0.00, 0.0, 0.00, 0.0),
    "fv": (0.10, 0.10, 0.0, 1.00, 0.0),
    "θð": (0.25, 0.10, 0.0, 0.60, 1.0),
    "sz": (0.16, 0.45, 0.0, 1.00, 0.1),
    "tdnɾ": (0.22, 0.25, 0.0, 0.65, 0.5),
    "lɫ": (0.34, 0.20, 0.0, 0.40, 0.9),
    "ʃʒʧʤ": (0.22, -0.40, 0.7, 0.80, 0.0),
    "ɹrɻ": (0.28, -0.30, 0.6, 0.25, 0.2),
    "w": (0.14, -0.80, 1.0, 0.00, 0.0),
    "j": (0.25, 0.60, 0.0, 0.50, 0.2),
    "kɡgŋx": (0.30, 0.10, 0.0, 0.30, 0.1),
    "hʔ": (0.36, 0.05, 0.0, 0.30, 0.1),
}
TARGETS = {symbol: np.array(target, np.float32) for symbols, target in _TABLE.items() for symbol in symbols}

LIPS_MEET = frozenset("pbm")
LIP_MEETS_TEETH = frozenset("fv")
LIP_TEETH_OPENING = 0.08

# Symbols of two or more sounds: misaki's capitals (hibari), and ARPAbet in small letters (flite).
_SPELLED = {
    "A": "ei", "I": "ai", "O": "ou", "Q": "əu", "W": "au", "Y": "ɔi", "T": "ɾ", "S": "s",
    "aa": "ɑ", "ae": "æ", "ah": "ʌ", "ao": "ɔ", "aw": "au", "ax": "ə", "ay": "ai", "b": "b", "ch": "ʧ", "d": "d",
    "dh": "ð", "eh": "ɛ", "er": "ɚ", "ey": "ei", "f": "f", "g": "g", "hh": "h", "ih": "ɪ", "iy": "i", "jh": "ʤ",
    "k": "k", "l": "l", "m": "m", "n": "n", "ng": "ŋ", "ow": "ou", "oy": "ɔi", "p": "p", "r": "ɹ", "s": "s",
    "sh": "ʃ", "t": "t", "th": "θ", "uh": "ʊ", "uw": "u", "v": "v", "w": "w", "y": "j", "z": "z", "zh": "ʒ",
}  # fmt: skip

# How strongly a sound keeps its width and rounding against its neighbours (the dominance of Cohen and Massaro, 1993):
# vowels and rounded consonants keep it, while t, k or h take the lips of the vowel beside them.
_YIELDING = {**dict.fromkeys("tdnɾkɡgŋxhʔlɫpbm", 0.3), **dict.fromkeys("θðfvəᵊ", 0.6), **dict.fromkeys("szj", 0.8)}
PAUSE_DOMINANCE = 0.6

RATE = 20 * FPS  # rate of the grid of curves; frame centres fall on grid points
SMOOTH_OPEN = 0.026  # s, standard deviation; the jaw is quicker than the corners of the mouth
SMOOTH_SHAPE = 0.045
CLOSURE_RAMP = 0.045  # s from shut to fully released
LOUDNESS_RANGE = 25.0  # dB below the loudest sound nearby; anything softer counts as this soft


def sounds(symbol: str) -> list[str]:
    """One engine symbol (IPA, misaki, ARPAbet) -> IPA letters that `TARGETS` knows, in order; [] for a pause."""
    spelled = _SPELLED.get(symbol, symbol.replace("tʃ", "ʧ").replace("dʒ", "ʤ"))
    return [letter for letter in spelled if letter in TARGETS]


def _segments(phonemes: Sequence[Phoneme]) -> list[tuple[str, float, float]]:
    """(IPA letter or "", start, end): phonemes of several sounds in equal parts, length marks alone joined."""
    segments: list[tuple[str, float, float]] = []
    for phoneme in phonemes:
        letters = sounds(phoneme.symbol)
        if not letters and phoneme.symbol == "ː" and segments:
            segments[-1] = (*segments[-1][:2], phoneme.end)
            continue
        edges = np.linspace(phoneme.start, phoneme.end, max(len(letters), 1) + 1)
        segments += [(s, edges[j], edges[j + 1]) for j, s in enumerate(letters or [""])]
    return segments


def _smooth(curve: np.ndarray, sigma: float) -> np.ndarray:
    """Gaussian of `sigma` seconds along axis 0 of float [T] or [T, C]; zeros outside."""
    reach = int(np.ceil(4 * sigma * RATE))
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / (sigma * RATE)) ** 2)
    kernel /= kernel.sum()
    columns = curve.reshape(len(curve), -1)
    out = np.stack([np.convolve(c, kernel)[reach : reach + len(c)] for c in columns.T], 1)
    return out.reshape(curve.shape)


def loudness(pcm: np.ndarray, points: int) -> np.ndarray:
    """float32 [n] clean speech -> [points] in 0..1 at `RATE`: 1 where it is as loud as it gets within half a second.

    Loudness is relative to the sound nearby, because a listener to half a second knows no more of the recording.
    """
    block = SAMPLE_RATE // RATE
    power = np.zeros(points)
    blocks = min(len(pcm) // block, points)
    power[:blocks] = (pcm[: blocks * block].reshape(blocks, block).astype(np.float64) ** 2).mean(1)
    level = 10 * np.log10(np.maximum(_smooth(power, 0.03), 1e-7))
    reach = RATE // 2
    padded = np.pad(level, reach, constant_values=-70.0)
    nearby = np.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 1).max(1)
    nearby = np.maximum(_smooth(nearby + 70, 0.1) - 70, level)
    return np.clip(1 + (level - nearby) / LOUDNESS_RANGE, 0, 1)


def _gate(points: int, spans: list[tuple[float, float]]) -> np.ndarray:
    """[points]: 0 inside each span, rising smoothly to 1 over CLOSURE_RAMP on either side."""
    time = np.arange(points) / RATE
    gate = np.ones(points)
    for start, end in spans:
        # at least a frame long, so that a frame's centre lies inside
        middle, half = (start + end) / 2, max((end - start) / 2, 0.52 / FPS)
        low, high = np.searchsorted(time, [middle - half - CLOSURE_RAMP, middle + half + CLOSURE_RAMP])
        x = np.clip((np.abs(time[low:high] - middle) - half) / CLOSURE_RAMP, 0, 1)
        gate[low:high] = np.minimum(gate[low:high], x * x * (3 - 2 * x))
    return gate


def mouth_curves(phonemes: Sequence[Phoneme], pcm: np.ndarray, frames: int) -> np.ndarray:
    """The curves of the mouth that says something.

    Args:
        phonemes: with times in seconds on the clock of `pcm`.
        pcm: float32 [n], the same speech at 24 kHz, clean: its loudness counts as stress.
        frames: number of video frames; frame f is sampled at its centre, (f + 0.5) / 24 s.

    Returns:
        float32 [frames, 5], the MOUTH_CHANNELS. After the speech the mouth is shut.
    """
    points = frames * RATE // FPS
    targets = np.zeros((points, len(MOUTH_CHANNELS)))
    dominance = np.full(points, PAUSE_DOMINANCE)
    meet: list[tuple[float, float]] = []
    bite: list[tuple[float, float]] = []
    for symbol, start, end in _segments(phonemes):
        if symbol:
            span = slice(round(start * RATE), round(end * RATE))
            targets[span], dominance[span] = TARGETS[symbol], _YIELDING.get(symbol, 1.0)
        if symbol in LIPS_MEET:
            meet.append((start, end))
        elif symbol in LIP_MEETS_TEETH:
            bite.append((start, end))
    targets[:, 0] *= 0.45 + 0.65 * loudness(pcm, points)
    curves = _smooth(targets, SMOOTH_OPEN)
    curves[:, 1:3] = _smooth(targets[:, 1:3] * dominance[:, None], SMOOTH_SHAPE)
    curves[:, 1:3] /= np.maximum(_smooth(dominance, SMOOTH_SHAPE), 1e-3)[:, None]
    bitten = _gate(points, bite)
    curves[:, 0] = LIP_TEETH_OPENING + (curves[:, 0] - LIP_TEETH_OPENING) * np.where(
        curves[:, 0] > LIP_TEETH_OPENING, bitten, 1
    )
    curves[:, 3] += (1 - curves[:, 3]) * (1 - bitten)
    together = _gate(points, meet)
    curves[:, 0] *= together
    curves[:, 3:] *= together[:, None]
    low = np.array([0, -1, 0, 0, 0])
    return np.clip(curves[RATE // FPS // 2 :: RATE // FPS], low, 1).astype(np.float32)
