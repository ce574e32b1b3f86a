"""What an agent has its avatar say: segments of sound, in order, handed to the aligner as it has room for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from actors.voice.resample import Resampler, to_mono
from characters.chunk import SAMPLE_RATE
from characters.errors import UserError

SILENT_SECONDS = 10.0  # without data, after which a segment's end counts as lost
_SUPERSEDED_SECONDS = 0.5  # the same, if a newer segment has begun: an agent sends one after another
_AHEAD = 5 * SAMPLE_RATE  # samples that the aligner holds at most; the rest waits as it came
_PIECE_SECONDS = 0.25  # of sound converted at a time
_MOST_BYTES = 1 << 26  # of all segments that wait: half an hour at 16 kHz
_MOST_SEGMENTS = 100
_CHANNELS = 32


class Sink(Protocol):
    """What takes the sound: see `actors.roles.aligner.AudioAligner`."""

    @property
    def queued(self) -> int:
        """Samples that wait."""
        ...

    def push(self, response_id: int, pcm: np.ndarray) -> int:
        """See `AudioAligner.push`."""
        ...


@dataclass(slots=True)
class Segment:
    """One stream of an agent's sound.

    Attributes:
        id: its response id.
        rate, channels: of the sound as it comes; 0 if it cannot be played.
        began, newest: when its stream began, and when its newest data came.
        received: bytes so far.
        ended: whether no more will come.
        superseded: whether a newer one has begun.
        pushed, played: samples at 24 kHz that the aligner has taken, and that have left.
        begun: whether its first sound has left.
    """

    id: int
    rate: int
    channels: int
    began: float
    newest: float
    received: int = 0
    ended: bool = False
    superseded: bool = False
    pushed: int = 0
    played: int = 0
    begun: bool = False
    resampler: Resampler | None = field(default=None, repr=False)
    waiting: bytearray = field(default_factory=bytearray, repr=False)
    ready: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32), repr=False)

    @property
    def seconds(self) -> float:
        """Of sound that have come."""
        return self.received // (2 * self.channels) / self.rate if self.rate else 0.0

    @property
    def handed_on(self) -> bool:
        """Whether the aligner has all of it."""
        return self.ended and not self.waiting and not len(self.ready)

    def position(self, lost: int = 0) -> float:
        """Seconds of it that have left, of which the last `lost` samples did not get out after all."""
        return min(self.seconds, max(0, self.played - lost) / SAMPLE_RATE)


class Segments:
    """Those that are not finished, in the order in which they began. All methods belong to one thread.

    Args:
        sink: takes the sound.
        clock: seconds.
        newest: response ids count from the next one on.

    Attributes:
        open: the segments.
        cleared: those that were cleared, until what had left of them is known.
        newest: response id of the newest segment.
    """

    def __init__(self, sink: Sink, clock: Callable[[], float], newest: int = 0) -> None:
        self._sink, self._clock = sink, clock
        self.open: deque[Segment] = deque()
        self.cleared: list[Segment] = []
        self.newest = newest

    def begin(self, attributes: dict[str, str]) -> Segment:
        """A stream has begun: the ones before it are over, even if their ends were lost.

        Args:
            attributes: of the stream: sample_rate and num_channels.
        """
        for older in self.open:
            older.superseded = True
        self.newest += 1
        rate, channels = _number(attributes.get("sample_rate")), _number(attributes.get("num_channels", "1"))
        resampler = None
        try:
            resampler = Resampler(rate, SAMPLE_RATE)
        except UserError:
            rate = 0
        if not 1 <= channels <= _CHANNELS or len(self.open) >= _MOST_SEGMENTS:
            rate = 0
        now = self._clock()
        segment = Segment(self.newest, rate, max(channels, 1), now, now, resampler=resampler)
        self.open.append(segment)
        return segment

    def receive(self, segment: Segment, data: bytes) -> bool:
        """Sound has come: int16, little endian, interleaved.

        Returns:
            Whether it was kept: not if the segment is over or cannot be played, or if too much waits.
        """
        waiting = sum(len(other.waiting) for other in self.open)
        if segment.ended or not segment.rate or segment not in self.open or waiting + len(data) > _MOST_BYTES:
            return False
        segment.newest = self._clock()
        segment.received += len(data)
        segment.waiting += data
        return True

    def end(self, segment: Segment) -> None:
        """The stream has ended; half a sample at its end is nothing."""
        segment.ended = True
        if len(segment.waiting) < 2 * segment.channels:
            segment.waiting.clear()

    def pump(self) -> None:
        """Hand on what the sink has room for, and end segments whose ends were lost."""
        now = self._clock()
        for segment in self.open:
            silent = now - max(segment.newest, segment.began)
            patience = _SUPERSEDED_SECONDS if segment.superseded else SILENT_SECONDS
            said = segment.played >= segment.pushed and len(segment.waiting) < 2 * segment.channels
            if not segment.ended and said and silent > patience:
                self.end(segment)
            while self._sink.queued < _AHEAD and self._push(segment):
                pass
            if not segment.handed_on:
                return  # a response's sound may not come after that of a newer one

    def played(self, response_id: int, samples: int) -> None:
        """So many samples of a response have left in all."""
        for segment in (*self.open, *self.cleared):
            if segment.id == response_id:
                segment.played = samples

    def finished(self) -> list[Segment]:
        """Those, from the oldest on, of which everything has left; they are open no longer."""
        found = []
        while self.open and self.open[0].handed_on and self.open[0].played >= self.open[0].pushed:
            found.append(self.open.popleft())
        return found

    def clear(self) -> list[Segment]:
        """All of them are over; they are open no longer."""
        found = list(self.open)
        self.cleared += found
        self.open.clear()
        for segment in found:
            segment.ended = True
            segment.waiting.clear()
        return found

    def _push(self, segment: Segment) -> bool:
        """Hand on a piece. Returns whether there was one, and the sink took all of it."""
        if not len(segment.ready):
            width = 2 * segment.channels
            size = min(len(segment.waiting) // width, int(segment.rate * _PIECE_SECONDS)) * width
            if not size or segment.resampler is None:
                return False
            pcm = np.frombuffer(bytes(segment.waiting[:size]), "<i2").reshape(-1, segment.channels)
            del segment.waiting[:size]
            if segment.ended and len(segment.waiting) < width:
                segment.waiting.clear()
            segment.ready = segment.resampler.push(to_mono(pcm.astype(np.int16)))
        taken = self._sink.push(segment.id, segment.ready)
        segment.pushed += taken
        segment.ready = segment.ready[taken:]
        return not len(segment.ready)


def _number(text: str | None) -> int:
    try:
        return int(text or "")
    except ValueError:
        return 0
