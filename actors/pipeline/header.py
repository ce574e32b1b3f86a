"""What travels beside every tensor: whose it is, and when it passed each place."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

# Places along a pipeline that stamp a chunk; each leaves two times, when its work on the chunk began and ended.
MAX_PLACES = 12

# The response of silence: nobody's reply, so that no barge-in can cancel it.
IDLE = -1
# The response of a chunk that was dropped on its way: its header still travels, so that no place waits for it.
DROPPED = -2
# As "the newest cancelled response": none has been cancelled yet.
NONE_CANCELLED = -1

_FORMAT = struct.Struct(f"<qq{2 * MAX_PLACES}d")
HEADER_BYTES = _FORMAT.size


@dataclass(frozen=True, slots=True)
class Header:
    """The fixed header of one chunk.

    Attributes:
        index: position on the session's clock.
        response_id: of the reply whose sound the chunk carries; IDLE if nobody speaks, DROPPED if it was dropped.
        stamps: 2 * MAX_PLACES times in seconds of `time.monotonic` (one clock for all processes of a host): place p
            leaves [2p] when it began and [2p + 1] when it ended. 0 = not passed.
    """

    index: int
    response_id: int
    stamps: tuple[float, ...] = (0.0,) * (2 * MAX_PLACES)

    def stamped(self, place: int, began: float, ended: float) -> Header:
        """A copy with the two times of one place filled in."""
        stamps = list(self.stamps)
        stamps[2 * place], stamps[2 * place + 1] = began, ended
        return replace(self, stamps=tuple(stamps))

    def joined(self, other: Header) -> Header:
        """A copy that also has the stamps of `other`, the header of the same chunk on another edge."""
        return replace(self, stamps=tuple(map(max, self.stamps, other.stamps)))

    def cancelled_by(self, cancelled: int) -> bool:
        """Whether the chunk is of response `cancelled` or an older one, or was dropped already."""
        return self.response_id == DROPPED or (self.response_id != IDLE and self.response_id <= cancelled)

    def dropped(self) -> Header:
        """A copy of response DROPPED."""
        return replace(self, response_id=DROPPED)

    def pack(self) -> bytes:
        """HEADER_BYTES bytes."""
        return _FORMAT.pack(self.index, self.response_id, *self.stamps)

    @staticmethod
    def unpack(data: bytes) -> Header:
        """Inverse of `pack`."""
        index, response_id, *stamps = _FORMAT.unpack(data)
        return Header(index, response_id, tuple(stamps))
