"""Voice activity by the silero network (MIT), and the hysteresis that turns it into onsets and pauses.

The network's ONNX file comes inside the package faster-whisper (MIT): nothing is downloaded. One window of 32 ms takes
about 0.06 ms on one core. A hop to another thread would cost more, so the network runs in the event loop.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from actors.voice.config import VadConfig
from actors.voice.protocols import WINDOW, WINDOW_MS
from characters.assets import SILERO

_CONTEXT = 64  # samples of the window before, which the network needs in front of each window


class SileroVad:
    """`VoiceActivity` by the silero network, version 6, on the CPU.

    Raises:
        UserError: the network is missing or altered.
    """

    def __init__(self) -> None:
        path = SILERO.file("silero_vad_v6.onnx")
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.reset()

    def reset(self) -> None:
        """See `VoiceActivity.reset`."""
        self._h = np.zeros((1, 1, 128), np.float32)
        self._c = np.zeros((1, 1, 128), np.float32)
        self._context = np.zeros(_CONTEXT, np.float32)

    def probability(self, window: np.ndarray) -> float:
        """See `VoiceActivity.probability`."""
        sound = np.concatenate([self._context, window]).astype(np.float32)[None]
        probability, self._h, self._c = self._session.run(None, {"input": sound, "h": self._h, "c": self._c})
        self._context = window[-_CONTEXT:]
        return float(probability.ravel()[0])


@dataclass(slots=True)
class VoiceGate:
    """Hysteresis over window probabilities.

    Attributes:
        voiced: whether the last window counts as voice.
        voiced_windows: voiced windows since `reset`.
        silent_windows: windows since the last voiced one.
        run: voiced windows in an unbroken sequence that ends now.
        run_sum: sum of their probabilities.
    """

    config: VadConfig
    voiced: bool = False
    voiced_windows: int = 0
    silent_windows: int = 0
    run: int = 0
    run_sum: float = 0.0

    def push(self, probability: float) -> None:
        """Takes the next window's probability."""
        self.voiced = probability >= (self.config.stop if self.voiced else self.config.start)
        self.voiced_windows += self.voiced
        self.silent_windows = 0 if self.voiced else self.silent_windows + 1
        self.run = self.run + 1 if self.voiced else 0
        self.run_sum = self.run_sum + probability if self.voiced else 0.0

    def reset(self) -> None:
        """Starts counting anew; `voiced` stays."""
        self.voiced_windows = self.silent_windows = self.run = 0
        self.run_sum = 0.0

    def onset(self, milliseconds: int) -> bool:
        """Whether `run` has lasted so long; where its mean probability is below `config.sure`, a window longer."""
        sure = self.run > 0 and self.run_sum / self.run >= self.config.sure
        return self.run_ms() >= milliseconds + (0 if sure else WINDOW_MS)

    def voiced_ms(self) -> int:
        """Milliseconds of voice since `reset`."""
        return self.voiced_windows * WINDOW_MS

    def silent_ms(self) -> int:
        """Milliseconds since the last voiced window."""
        return self.silent_windows * WINDOW_MS

    def run_ms(self) -> int:
        """Milliseconds of `run`."""
        return self.run * WINDOW_MS


def windows(pcm: np.ndarray) -> np.ndarray:
    """float32 [n] -> float32 [n // 512, 512]; the rest at the end is dropped."""
    return pcm[: len(pcm) // WINDOW * WINDOW].reshape(-1, WINDOW)
