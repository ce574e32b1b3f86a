"""Publishes picture and sound together, at the pace of the sound."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from actors.channels.protocol import ChannelAborted
from actors.pipeline.deadline import Deadline
from actors.pipeline.header import NONE_CANCELLED, Header
from actors.pipeline.loop import LoopRole
from actors.pipeline.session import SessionSpec
from actors.roles.outlet import Outlet
from characters.chunk import Clock

# Seconds of unsent sound that a room may have when the next chunk begins.
MOST_AHEAD = 0.04


# Frames between two reports of what was played.
_REPORT_EVERY = 4


class Playback(Protocol):
    """Decides what is shown of a chunk, which may become less while it is shown; and is told. From any thread."""

    def arrived(self, header: Header) -> None:
        """A chunk has come from the model."""

    def frames(self, index: int) -> int:
        """How many frames of a chunk are shown, as far as is decided."""

    def goes_on(self, index: int, frame: int) -> bool:
        """Whether frame `frame` of chunk `index` is shown, now; if not, the chunk is over."""

    def played(self, index: int, samples: int) -> object:
        """The first `samples` samples of chunk `index` have been published, so far."""


class Whole:
    """A `Playback` that shows all of every chunk.

    Args:
        clock: of the model.
    """

    def __init__(self, clock: Clock) -> None:
        self._frames = clock.frames

    def arrived(self, header: Header) -> None:
        """See `Playback.arrived`."""

    def frames(self, index: int) -> int:
        """See `Playback.frames`."""
        return self._frames

    def goes_on(self, index: int, frame: int) -> bool:
        """See `Playback.goes_on`."""
        return True

    def played(self, index: int, samples: int) -> object:
        """See `Playback.played`."""


class RoomPublisher(LoopRole):
    """Publishes a chunk as blocks: a frame and its samples, one after another at the pace of the model's clock.

    The publisher has no queue: the channels before it hold the chunks that wait. What is cut away of a chunk is neither
    shown nor heard, and the next chunk is due where the cut is.

    Args:
        join: joins the session's room.
        clock: of the model.
        playback: decides what is shown; all of every chunk by default.
        cuts: whether the model can go on from any frame. Then a chunk whose response is over is not dropped: it is
            shown without sound until it is cut.
        now, sleep: seconds; for tests.
    """

    def __init__(
        self,
        join: Callable[[SessionSpec], Outlet],
        clock: Clock,
        playback: Playback | None = None,
        *,
        cuts: bool = False,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        self.clock = clock
        self.deadline = Deadline(clock.seconds)
        self.room: Outlet | None = None
        self.join, self._playback = join, playback or Whole(clock)
        self.drops = not cuts
        self._closed = threading.Event()
        self._now, self._sleep = now, sleep or self._closed.wait
        self._cancelled = NONE_CANCELLED

    def reset(self, session: SessionSpec) -> None:
        """Join the session's room, leaving any other.

        Raises:
            UserError: the room cannot be joined.
        """
        self.close()
        self._closed.clear()
        self.deadline = Deadline(self.clock.seconds)
        self.room = self.join(session)

    def publish(self, header: Header, frames: np.ndarray, pcm: np.ndarray) -> tuple[int, int]:
        """Wait until the chunk is due, then publish it frame by frame.

        If its response is cancelled meanwhile, its frames go on, but its sound is silent from the next frame on.

        Args:
            header: of the chunk.
            frames: uint8 [clock.frames, H * 3 / 2, W], I420.
            pcm: float32 [clock.samples].

        Returns:
            How many of its frames were shown, and how many of its samples were published before the silence.

        Raises:
            ChannelAborted: the room was left meanwhile.
        """
        assert self.room is not None, "reset comes first"
        room, clock, step, index = self.room, self.clock, self.clock.frame_samples, header.index
        if not self._playback.frames(index):
            return 0, 0
        self._wait(self.deadline.due(self._now()))
        if (ahead := room.ahead()) > MOST_AHEAD:
            # After a stall the room holds more sound than it can send at once: all that follows would be late.
            self._wait(self._now() + ahead)
        if not self._playback.frames(index):
            return 0, 0
        start = self._now()
        late = self.deadline.leave(start)
        # A chunk on time stays on the grid, whatever the timer's jitter; a late chunk starts a new grid now.
        begin = start if late else self.deadline.due(start) - self.deadline.period
        heard = shown = 0
        for i in range(clock.frames):
            due = begin + i / clock.fps
            self._wait(due)
            if not self._playback.goes_on(index, i):
                break
            behind = room.ahead() + room.sound_lag
            block = pcm[i * step : (i + 1) * step]
            if header.cancelled_by(self._cancelled):
                block = np.zeros_like(block)
            else:
                heard = (i + 1) * step
            room.capture_audio(block)
            # After a late wake-up, sound waits in the room's queue from then on. The frame leaves with its sound.
            leaves = max(due, self._now()) + behind
            self._wait(leaves)
            room.capture_video(frames[i], int(leaves * 1e6), header.first + i)
            shown = i + 1
            if shown % _REPORT_EVERY == 0:
                self.report(index, heard)
        self.deadline.shorten((clock.frames - shown) / clock.fps)
        return shown, heard

    def report(self, index: int, samples: int) -> None:
        """The first `samples` samples of chunk `index` have been published, so far."""
        self._playback.played(index, samples)

    def cancel(self, response_id: int) -> None:
        """See `LoopRole.cancel`."""
        self._cancelled = max(self._cancelled, response_id)
        if self.room is not None:
            self.room.clear()

    def step(self, header: Header | None, inputs: Mapping[str, Tensor]) -> tuple[Header, dict[str, Tensor]]:
        """See `LoopRole.step`: takes ports "frames" and "pcm"."""
        assert header is not None
        self._playback.arrived(header)
        shown, heard = self.publish(header, inputs["frames"].numpy(), inputs["pcm"].numpy())
        self.report(header.index, heard)
        return replace(header, frames=shown), {}

    def misses(self) -> int:
        """See `LoopRole.misses`."""
        return self.deadline.misses

    def snapshot(self) -> dict[str, Any]:
        """See `LoopRole.snapshot`."""
        return {"cancelled": self._cancelled}

    def restore(self, state: dict[str, Any]) -> None:
        """See `LoopRole.restore`."""
        self._cancelled = state["cancelled"]

    def close(self) -> None:
        """Leave the room."""
        self._closed.set()
        if self.room is not None:
            self.room.close()
            self.room = None

    def _wait(self, until: float) -> None:
        while (left := until - self._now()) > 0 and not self._closed.is_set():
            self._sleep(left)
        if self._closed.is_set():
            raise ChannelAborted("the room was left")
