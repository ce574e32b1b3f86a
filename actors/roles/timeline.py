"""Which frames of which chunks are shown. The aligner decides it, the publisher keeps to it.

A chunk of a second must not cost a second's wait. Where a model can go on from any frame that was shown, the rest of a
chunk is cut away at the first frame that a chunk issued now can follow: the time that one is made in, and a margin.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from actors.pipeline.header import Header
from characters.chunk import Clock

# Seconds that a chunk may take longer than the slowest of the newest ones, its way to the publisher included.
MARGIN = 0.05
_NEWEST = 8  # chunks whose making tells how long the next one will take


@dataclass(slots=True)
class Piece:
    """A chunk that was issued.

    Attributes:
        index: of the chunk.
        first: number of its first frame in the session.
        frames: of it that are shown, as far as is decided.
        heard: samples of it that went to the listener, from its start.
    """

    index: int
    first: int
    frames: int
    heard: int = 0

    @property
    def end(self) -> int:
        """Number of the frame after its last."""
        return self.first + self.frames


class Timeline:
    """One session's frames. It has no lock: its owner's guards it.

    Args:
        clock: of the model.

    Attributes:
        pieces: the chunk that is shown, and those that follow it.
        end: number of the frame at which the next chunk begins.
        shown: frames that have been shown, or are at this moment.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.pieces: deque[Piece] = deque()
        self.end = self.shown = 0
        self._making: deque[float] = deque([clock.seconds / 2], maxlen=_NEWEST)
        self._measured = False
        self._busy_until = 0.0

    @property
    def wants(self) -> bool:
        """Whether it is time for the next chunk: the newest one is being shown, and what is left of it lasts no longer
        than two chunks are made in. A model that is not at work is there for what comes unexpected.
        """
        left = math.ceil((2 * max(self._making) + MARGIN) * self._clock.fps)
        return not self.pieces or (self.shown > self.pieces[-1].first and self.end - self.shown <= left)

    def issue(self, index: int, now: float) -> Piece:
        """A chunk was issued at `now`, in seconds; all of it is to be shown after the chunks before."""
        piece = Piece(index, self.end, self._clock.frames)
        self.pieces.append(piece)
        self.end = piece.end
        self._busy_until = max(now, self._busy_until) + max(self._making)
        return piece

    def horizon(self, now: float) -> int:
        """Number of the first frame that a chunk issued at `now` can begin with, without being late."""
        lead = max(0.0, self._busy_until - now) + max(self._making) + MARGIN
        return self.shown + math.ceil(lead * self._clock.fps)

    def cut(self, frame: int) -> None:
        """Nothing that was issued is shown from frame number `frame` on."""
        assert self.shown <= frame <= self.end
        for piece in self.pieces:
            piece.frames = max(0, min(piece.frames, frame - piece.first))
        self.end = frame
        while self.pieces and not self.pieces[-1].frames:
            self.pieces.pop()

    def arrived(self, header: Header) -> None:
        """A chunk came from the model; its stamps tell how long it was made."""
        began, ended = header.stamps[2:4]
        if ended > began > 0:
            if not self._measured:
                self._making.clear()  # of a guess
                self._measured = True
            self._making.append(ended - began)

    def frames(self, index: int) -> int:
        """How many frames of a chunk are shown, as far as is decided."""
        return next((piece.frames for piece in self.pieces if piece.index == index), 0)

    def goes_on(self, index: int, frame: int, heard: bool) -> bool:
        """Frame `frame` of chunk `index` is next.

        Returns:
            Whether it is shown; then it can no longer be cut away, and `heard` tells whether its sound is heard.
        """
        while self.pieces and self.pieces[0].index < index:
            self.pieces.popleft()
        if not self.pieces or self.pieces[0].index != index or frame >= self.pieces[0].frames:
            return False
        piece = self.pieces[0]
        self.shown = piece.first + frame + 1
        if heard:
            piece.heard = (frame + 1) * self._clock.frame_samples
        return True

    def after(self, frame: int) -> Iterator[Piece]:
        """Pieces of which something is shown from frame number `frame` on."""
        return (piece for piece in self.pieces if piece.end > frame)
