"""What is odd about a recording, found in its samples: channels that cancel, a wrong scale, silence, clipping."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from av.audio.frame import AudioFrame

SECONDS = 300.0  # that are looked at, where looking at all would take long
_SILENT = 1e-4  # of full scale: -80 dB
_QUIET = 0.02
_CANCELS = 0.1  # of the channels' loudness left in their mix
_ONE_SIDED = 0.03  # of the louder channel's loudness in the other
_CLIPPED = 0.001  # share of samples at the top of the scale
# Float samples are full scale at 1. Programs that forget to divide leave the range of the integers they came from.
_SCALES = ((4.0, 32_768.0 * 1.01, 32_768.0, "16-bit"), (40_000.0, 2.0**31 * 1.01, 2.0**31, "32-bit"))


@dataclass
class Survey:
    """How a recording is to be read.

    Attributes:
        channel: the one that is heard alone; None = a mix of all.
        gain: that its samples are multiplied with.
        remarks: what was odd, and what is done about it, each a clause.
    """

    channel: int | None = None
    gain: float = 1.0
    remarks: list[str] = field(default_factory=list)

    @property
    def plain(self) -> bool:
        """Whether it is read as it is."""
        return self.channel is None and self.gain == 1.0

    def apply(self, frame: AudioFrame) -> AudioFrame:
        """The frame as it is to be read."""
        samples = planes(frame) * np.float32(self.gain)
        if self.channel is not None and self.channel < len(samples):
            samples = samples[self.channel : self.channel + 1]
        layout = "mono" if len(samples) == 1 else frame.layout.name
        read = AudioFrame.from_ndarray(np.ascontiguousarray(samples), format="fltp", layout=layout)
        read.sample_rate = frame.sample_rate
        return read


def planes(frame: AudioFrame) -> np.ndarray:
    """float32 [channels, n] of a frame in any format; integers come out in [-1, 1)."""
    samples: np.ndarray = frame.to_ndarray()
    if not frame.format.is_planar:
        samples = samples.reshape(-1, len(frame.layout.channels)).T
    if samples.dtype == np.uint8:
        return (samples.astype(np.float32) - 128) / 128
    scale = 1.0 if samples.dtype.kind == "f" else 2.0 ** (8 * samples.dtype.itemsize - 1)
    return samples.astype(np.float32) / np.float32(scale)


def survey(frames: Iterable[AudioFrame]) -> Survey:
    """Look at decoded frames, NaN and infinity among them or not."""
    energy: np.ndarray | None = None
    mixed = peak = 0.0
    count = clipped = 0
    floating = False
    for frame in frames:
        samples = np.nan_to_num(planes(frame), nan=0.0, posinf=0.0, neginf=0.0)
        floating = floating or frame.format.name.startswith(("flt", "dbl"))
        if energy is None or len(energy) != len(samples):
            energy = np.zeros(len(samples))
            mixed, count = 0.0, 0
        energy += np.square(samples, dtype=np.float64).sum(1)
        mixed += float(np.square(samples.mean(0), dtype=np.float64).sum())
        count += samples.shape[1]
        size = np.abs(samples)
        peak = max(peak, float(size.max(initial=0.0)))
        clipped += int((size.max(0) >= 0.999).sum()) if size.size else 0
    found = Survey()
    if energy is None or count == 0:
        return found
    loud = np.sqrt(energy / count)
    for low, high, scale, what in _SCALES if floating else ():
        if low < peak <= high:
            found.gain = 1 / scale
            found.remarks.append(f"its samples have the scale of {what} integers; they are divided by {scale:,.0f}")
    if found.gain == 1.0 and peak > 1.0:
        found.gain = 1 / peak
        found.remarks.append(f"its peaks are {peak:.2f} times full scale; it is made quieter, so that nothing clips")
    best, mix = int(loud.argmax()), (mixed / count) ** 0.5
    if loud[best] > 0 and len(loud) > 1:
        sides = ("left", "right") if len(loud) == 2 else tuple(f"channel {i + 1}" for i in range(len(loud)))
        if mix < _CANCELS * loud[best]:
            if (loud > _ONE_SIDED * loud[best]).sum() > 1:
                found.channel = best
                found.remarks.append(f"its channels cancel each other; only the {sides[best]} one is heard")
        elif len(loud) == 2 and loud.min() < _ONE_SIDED * loud[best]:
            found.channel = best
            found.remarks.append(f"one of its channels is silent; only the {sides[best]} one is heard")
    top = peak * found.gain
    if top < _SILENT:
        found.remarks.append("it is silent: the character's mouth will stay shut")
    elif top < _QUIET:
        found.remarks.append(
            f"it is very quiet (its loudest sample is {20 * np.log10(top):.0f} dB): lips may hardly move"
        )
    elif found.gain == 1.0 and clipped > _CLIPPED * count:
        found.remarks.append(
            f"it is clipped ({clipped / count:.1%} of it is at the top of the scale): it may sound harsh"
        )
    return found
