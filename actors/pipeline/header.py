"""What travels beside every tensor: which chunk it belongs to, and when each step of the pipeline worked on it."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

# Spans that a header has room for. A span is one step's work on one chunk: the times when it began and ended.
MAX_SPANS = 12

# The response id of silence, which belongs to no reply, so that no barge-in can cancel it.
IDLE = -1
# The response id of a chunk that was dropped. Its header still travels, so that no role waits for it.
DROPPED = -2
# Stands for the newest cancelled response while none has been cancelled.
NONE_CANCELLED = -1

_FORMAT = struct.Struct(f"<qqqq{2 * MAX_SPANS}d")
HEADER_BYTES = _FORMAT.size


@dataclass(frozen=True, slots=True)
class Header:
    """The fixed header of one chunk.

    Attributes:
        index: position on the session's clock.
        response_id: of the reply whose sound the chunk carries; IDLE if nobody speaks, DROPPED if it was dropped.
        stamps: 2 * MAX_SPANS times in seconds of `time.monotonic` (one clock for all processes of a host): [2s] is when
            span s began, [2s + 1] when it ended. 0 = that has not happened.
        first: number of its first frame in the session. Frames that were cut away do not count.
        frames: of it that are shown.
    """

    index: int
    response_id: int
    stamps: tuple[float, ...] = (0.0,) * (2 * MAX_SPANS)
    first: int = 0
    frames: int = 0

    def stamped(self, span: int, began: float, ended: float) -> Header:
        """A copy with the two times of span number `span` filled in."""
        stamps = list(self.stamps)
        stamps[2 * span], stamps[2 * span + 1] = began, ended
        return replace(self, stamps=tuple(stamps))

    def joined(self, other: Header) -> Header:
        """A copy that also has the stamps of `other`, the header of the same chunk on another edge."""
        return replace(self, stamps=tuple(map(max, self.stamps, other.stamps)))

    def cancelled_by(self, cancelled: int) -> bool:
        """Whether the chunk belongs to response `cancelled` or an older one, or was dropped already."""
        return self.response_id == DROPPED or (self.response_id != IDLE and self.response_id <= cancelled)

    def dropped(self) -> Header:
        """A copy with the response id DROPPED."""
        return replace(self, response_id=DROPPED)

    def pack(self) -> bytes:
        """HEADER_BYTES bytes."""
        return _FORMAT.pack(self.index, self.response_id, self.first, self.frames, *self.stamps)

    @staticmethod
    def unpack(data: bytes) -> Header:
        """Inverse of `pack`."""
        index, response_id, first, frames, *stamps = _FORMAT.unpack(data)
        return Header(index, response_id, tuple(stamps), first, frames)
