"""hibari-tts: a small voice inside a pip package (Apache-2.0), and the times of its phonemes.

The network computes a duration for each symbol, but the package does not return it. The network's graph is a protobuf,
and bytes appended to a serialised protobuf add to its repeated fields. So a few bytes at the end make that tensor an
output of the graph, without the onnx package and without a change of the file on disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np

from characters.assets import HIBARI
from characters.chunk import SAMPLE_RATE
from characters.errors import UserError
from characters.speech.base import Phoneme, Speech
from characters.speech.clauses import sentences

DURATIONS = "/Clip_output_0"  # float [1, symbols], in units of two 12.5 ms frames
DURATION_SECONDS = 0.025

# How far the labels lie behind the sound: at this shift the phonemes explain most of the spectrum's variance, 54.0 %
# (unshifted 37.5 %). `training/align.py` corrects what is left, phoneme by phoneme.
LABEL_DELAY = 0.052

_STRESS = "ˈˌ"
_PAUSES = ' .,;:!?—…"()“”_'
_SHORT_SPACE = 0.11  # a longer gap between words is a pause


def _field(number: int, payload: bytes) -> bytes:
    """One length-delimited protobuf field; payloads here have less than 128 bytes."""
    return bytes([number << 3 | 2, len(payload)]) + payload


def _with_durations(model: bytes) -> bytes:
    """The serialised ONNX model with `DURATIONS` as one more graph output."""
    float_tensor = _field(1, b"\x08\x01")  # TypeProto.tensor_type { elem_type: FLOAT }
    output = _field(1, DURATIONS.encode()) + _field(2, float_tensor)  # ValueInfoProto { name, type }
    return model + _field(7, _field(12, output))  # ModelProto.graph { output }


class HibariVoice:
    """American English, female. Runs 100 times faster than real time on one core; first sound after about 30 ms.

    Raises:
        UserError: hibari-tts is not installed; when first speaking, its files are missing or altered.
    """

    def __init__(self, seed: int = 0) -> None:
        """`seed` fixes the noise part of the sound, so that the same calls give the same samples."""
        try:
            import hibari
            import onnxruntime
            from hibari import dsp
        except ImportError as error:
            raise UserError("The hibari voice needs the package hibari-tts: pip install hibari-tts.") from error
        self._hibari, self._onnxruntime, self._dsp = hibari, onnxruntime, dsp
        self._rng = np.random.default_rng(seed)

    @cached_property
    def _text(self) -> Any:
        """The package's own object, which turns text into symbols. Ours replaces its session."""
        import json

        tts = self._hibari.Hibari.__new__(self._hibari.Hibari)
        vocab = json.loads(HIBARI.file("vocab.json").read_text("utf8"))
        tts.voice, tts.vocab, tts._g2p = "heart", vocab, None
        return tts

    @cached_property
    def _session(self) -> Any:
        options = self._onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        model = _with_durations(HIBARI.file("hibari.onnx").read_bytes())
        return self._onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    def speak(self, text: str, *, speed: float = 1.0, pitch: float = 0.0) -> Iterator[Speech]:
        """See `Synthesiser.speak`. Pitch moves only the fundamental: formants and timing stay."""
        for symbols in (symbols for sentence in sentences(text) for symbols in self._text.phonemize(sentence)):
            known = [s for s in symbols if s in self._text.vocab]
            if not known:
                continue
            ids = np.array([[0, *(self._text.vocab[s] for s in known), 0]], np.int64)
            outputs = self._session.run(None, {"ids": ids, "speed": np.array([speed], np.float32)})
            *spectra, f0 = (o[0] for o in outputs[:6])
            pcm = self._dsp.synth(*spectra, f0 * np.float32(2 ** (pitch / 12)), self._rng).astype(np.float32)
            durations = np.asarray(outputs[6], np.float64).ravel() * DURATION_SECONDS
            yield Speech(pcm, _phonemes(["_", *known, "_"], durations, len(pcm) / SAMPLE_RATE))


def _phonemes(symbols: list[str], durations: np.ndarray, seconds: float) -> list[Phoneme]:
    """Symbols with their durations -> phonemes on the sound's clock.

    Stress marks, length marks and short gaps have durations of their own. The time of a stress mark goes to the next
    phoneme, that of a length mark to the one before, and a short gap is shared equally by its neighbours.
    """
    starts: list[float] = []
    kept: list[str] = []
    time, owed = -LABEL_DELAY, 0.0
    for symbol, duration in zip(symbols, durations, strict=True):
        if symbol in _STRESS:
            owed += duration
        elif symbol == " " and duration < _SHORT_SPACE:
            owed += duration / 2
        elif symbol != "ː":
            kept.append("" if symbol in _PAUSES else symbol)
            starts.append(time - owed)
            owed = 0.0
        time += duration
    borders = np.clip([0.0, *starts[1:], seconds], 0, seconds).tolist()
    return [Phoneme(s, a, b) for s, a, b in zip(kept, borders[:-1], borders[1:], strict=True)]
