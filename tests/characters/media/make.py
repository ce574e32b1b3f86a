"""Makes recordings of every kind for the tests."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
import numpy as np


def tone(seconds: float, rate: int, channels: int = 1, hertz: float = 440.0) -> np.ndarray:
    """float64 [channels, n], the same 0.5 sine on each."""
    t = np.arange(round(seconds * rate)) / rate
    return np.tile(0.5 * np.sin(2 * np.pi * hertz * t), (channels, 1))


def write_audio(path: Path, samples: np.ndarray, rate: int, codec: str, layout: str = "mono") -> Path:
    """Write float samples [channels, n] in any codec; `path`'s suffix chooses the container."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate, layout=layout)
        resampler = av.AudioResampler(stream.codec_context.format.name, layout, rate)
        interleaved = np.ascontiguousarray(samples.T.reshape(1, -1))
        if codec in ("pcm_f32le", "pcm_f64le"):  # straight: NaN must arrive
            kind, form = (np.float32, "flt") if codec == "pcm_f32le" else (np.float64, "dbl")
            frame = av.AudioFrame.from_ndarray(interleaved.astype(kind), format=form, layout=layout)
        else:
            frame = av.AudioFrame.from_ndarray(interleaved.astype(np.float32), format="flt", layout=layout)
        frame.sample_rate, frame.pts, frame.time_base = rate, 0, Fraction(1, rate)
        size = stream.codec_context.frame_size or 4096
        fifo = av.AudioFifo()
        for converted in [*resampler.resample(frame), *resampler.resample(None)]:
            if converted is not None:
                fifo.write(converted)
        while (part := fifo.read(size)) or (part := fifo.read(0, partial=True)):
            container.mux(stream.encode(part))
        container.mux(stream.encode(None))
    return path
