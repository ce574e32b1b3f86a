"""What travels beside every tensor: whose it is, and when it passed each place."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

# Places along a pipeline that stamp a chunk; each leaves two times, when its work on the chunk began and ended.
MAX_PLACES = 12

# The generation of silence: nobody's reply, so that no barge-in can retire it.
IDLE = -1
# The generation of a chunk that was dropped on its way: its header still travels, so that no place waits for it.
DROPPED = -2
# As "the newest retired generation": none has been retired yet.
NONE_RETIRED = -1

_FORMAT = struct.Struct(f"<qq{2 * MAX_PLACES}d")
HEADER_BYTES = _FORMAT.size


@dataclass(frozen=True, slots=True)
class Header:
    """The fixed header of one chunk.

    Attributes:
        index: position on the session's clock.
        generation: of the reply whose sound the chunk carries; IDLE if nobody speaks, DROPPED if it was dropped.
        stamps: 2 * MAX_PLACES times in seconds of `time.monotonic` (one clock for all processes of a host): place p
            leaves [2p] when it began and [2p + 1] when it ended. 0 = not passed.
    """

    index: int
    generation: int
    stamps: tuple[float, ...] = (0.0,) * (2 * MAX_PLACES)

    def stamped(self, place: int, began: float, ended: float) -> Header:
        """A copy with the two times of one place filled in."""
        stamps = list(self.stamps)
        stamps[2 * place], stamps[2 * place + 1] = began, ended
        return replace(self, stamps=tuple(stamps))

    def joined(self, other: Header) -> Header:
        """A copy that also has the stamps of `other`, the header of the same chunk on another edge."""
        return replace(self, stamps=tuple(map(max, self.stamps, other.stamps)))

    def retired_by(self, retired: int) -> bool:
        """Whether the chunk is of generation `retired` or an older one, or was dropped already."""
        return self.generation == DROPPED or (self.generation != IDLE and self.generation <= retired)

    def dropped(self) -> Header:
        """A copy of generation DROPPED."""
        return replace(self, generation=DROPPED)

    def pack(self) -> bytes:
        """HEADER_BYTES bytes."""
        return _FORMAT.pack(self.index, self.generation, *self.stamps)

    @staticmethod
    def unpack(data: bytes) -> Header:
        """Inverse of `pack`."""
        index, generation, *stamps = _FORMAT.unpack(data)
        return Header(index, generation, tuple(stamps))
