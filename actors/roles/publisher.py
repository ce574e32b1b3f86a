"""Publishes picture and sound together, at the pace of the sound."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

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


class RoomPublisher(LoopRole):
    """Publishes a chunk as blocks: a frame and its samples, one after another at the pace of the model's clock.

    The publisher has no queue: the channels before it hold two chunks.

    Args:
        join: joins the session's room.
        clock: of the model.
        played: called after each chunk with its index and how many of its samples were published.
        now, sleep: seconds; for tests.
    """

    def __init__(
        self,
        join: Callable[[SessionSpec], Outlet],
        clock: Clock,
        played: Callable[[int, int], object] = lambda index, samples: None,
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        self.clock = clock
        self.deadline = Deadline(clock.seconds)
        self.room: Outlet | None = None
        self.join, self._played = join, played
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

    def publish(self, header: Header, frames: np.ndarray, pcm: np.ndarray) -> int:
        """Wait until the chunk is due, then publish it frame by frame.

        If its response is cancelled meanwhile, its frames go on, but its sound is silent from the next frame on.

        Args:
            header: of the chunk.
            frames: uint8 [clock.frames, H * 3 / 2, W], I420.
            pcm: float32 [clock.samples].

        Returns:
            How many of its samples were published before the silence.

        Raises:
            ChannelAborted: the room was left meanwhile.
        """
        assert self.room is not None, "reset comes first"
        room, clock, step = self.room, self.clock, self.clock.frame_samples
        self._wait(self.deadline.due(self._now()))
        if (ahead := room.ahead()) > MOST_AHEAD:
            # After a stall the room holds more sound than it can send at once: all that follows would be late.
            self._wait(self._now() + ahead)
        start = self._now()
        late = self.deadline.leave(start)
        # A chunk on time stays on the grid, whatever the timer's jitter; a late chunk starts a new grid now.
        begin = start if late else self.deadline.due(start) - self.deadline.period
        heard = 0
        for i in range(clock.frames):
            due = begin + i / clock.fps
            self._wait(due)
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
        return heard

    def cancel(self, response_id: int) -> None:
        """See `LoopRole.cancel`."""
        self._cancelled = max(self._cancelled, response_id)
        if self.room is not None:
            self.room.clear()

    def step(self, header: Header | None, inputs: Mapping[str, Tensor]) -> tuple[Header, dict[str, Tensor]]:
        """See `LoopRole.step`: takes ports "frames" and "pcm"."""
        assert header is not None
        heard = self.publish(header, inputs["frames"].numpy(), inputs["pcm"].numpy())
        self._played(header.index, heard)
        return header, {}

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
