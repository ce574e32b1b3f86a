"""What each chunk and each turn spent its time on: percentiles, and a trace for chrome://tracing or Perfetto."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise

from actors.pipeline.header import Header
from characters.chunk import FPS, FRAMES_PER_CHUNK

_SOUGHT = 60  # newest chunks, in which one that has just been seen must be


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a conversation.

    Attributes:
        response_id: of the reply.
        stamps: seconds of `time.monotonic`, in order, by the name of what happened then.
    """

    response_id: int
    stamps: Mapping[str, float]


class Trace:
    """The most recent chunks and turns of one session; all times are seconds of `time.monotonic`.

    Args:
        places: names of the places that stamp a chunk, in the order of its way.
        capacity: chunks kept; older ones are forgotten. Turns are kept likewise.

    Attributes:
        chunks: headers with all stamps.
        turns: finished ones.
        shown: when a user saw a chunk's first frame, by the chunk's index.
    """

    def __init__(self, places: Sequence[str], capacity: int = 4096) -> None:
        self.places = tuple(places)
        self.chunks: deque[Header] = deque(maxlen=capacity)
        self.turns: deque[Turn] = deque(maxlen=capacity)
        self.shown: OrderedDict[int, float] = OrderedDict()

    def __getstate__(self) -> dict[str, object]:
        """For pickle, which takes its time: copies, made in one step each, while a stage goes on entering chunks."""
        return vars(self) | {"chunks": self.chunks.copy(), "turns": self.turns.copy(), "shown": self.shown.copy()}

    def add(self, header: Header) -> None:
        """Enter a chunk that has reached the end of its way."""
        self.chunks.append(header)

    def add_turn(self, turn: Turn) -> None:
        """Enter a finished turn."""
        self.turns.append(turn)

    def add_shown(self, frame: int, at: float) -> float | None:
        """A user saw frame number `frame` at `at`.

        Returns:
            Seconds since it was published; None if it was not, or long ago.
        """
        index, behind = divmod(frame, FRAMES_PER_CHUNK)
        header = next((h for h in islice(reversed(list(self.chunks)), _SOUGHT) if h.index == index), None)
        if header is None:
            return None
        self.shown.setdefault(index, at - behind / FPS)
        while len(self.shown) > (self.chunks.maxlen or 0):
            self.shown.popitem(last=False)
        return at - behind / FPS - self._published(header)

    def _published(self, header: Header) -> float:
        """When a chunk's first frame left the last place, which lets them go at the pace of the sound."""
        return header.stamps[2 * len(self.places) - 1] - (FRAMES_PER_CHUNK - 1) / FPS

    def seconds(self) -> dict[str, list[float]]:
        """Seconds of every chunk, by what they were spent on.

        A place's own name is its work. "a > b" is the hop between two places: from when the chunk was finished at a and
        b was free to when b began. "hops" is their sum, which is what running in several processes costs. "queued" is
        the time that the chunk waited for places that were busy with the chunk before it, and "latency" everything
        from the beginning of the first place's work to the beginning of the last's. "shown" is a frame's way from
        there to the eye, if a user's client told.
        """
        result: dict[str, list[float]] = {name: [] for name in self.places}
        between = [f"{a} > {b}" for a, b in pairwise(self.places)]
        result |= {name: [] for name in (*between, "hops", "queued", "latency", "shown")}
        before: tuple[float, ...] | None = None  # when each place ended the chunk before
        for header in list(self.chunks):
            began = header.stamps[: 2 * len(self.places) : 2]
            ended = header.stamps[1 : 2 * len(self.places) : 2]
            if not all(began) or not all(ended):
                continue
            for name, a, b in zip(self.places, began, ended, strict=True):
                result[name].append(b - a)
            if before is not None:
                ready = [max(end, free) for end, free in zip(ended[:-1], before[1:], strict=True)]
                hops = [start - at for start, at in zip(began[1:], ready, strict=True)]
                for name, hop in zip(between, hops, strict=True):
                    result[name].append(hop)
                result["hops"].append(sum(hops))
                result["queued"].append(sum(at - end for at, end in zip(ready, ended[:-1], strict=True)))
            result["latency"].append(began[-1] - began[0])
            if (seen := self.shown.get(header.index)) is not None:
                result["shown"].append(seen - self._published(header))
            before = ended
        return result

    def turn_seconds(self) -> dict[str, list[float]]:
        """Seconds between the neighbouring stamps of every turn, by "a > b", and "turn" for the whole."""
        result: dict[str, list[float]] = {}
        for turn in list(self.turns):
            stamps = self.stamps(turn)
            for (a, begin), (b, end) in pairwise(stamps):
                result.setdefault(f"{a} > {b}", []).append(end - begin)
            if len(stamps) > 1:
                result.setdefault("turn", []).append(stamps[-1][1] - stamps[0][1])
        return result

    def stamps(self, turn: Turn) -> list[tuple[str, float]]:
        """A turn's. When its first responding frame was seen ends it, if that is known: what is reported later, such as
        that the chunk has been played to its end, is left out.
        """
        stamps = list(turn.stamps.items())
        indices = (header.index for header in list(self.chunks) if header.response_id == turn.response_id)
        first = next((index for index in indices if index in self.shown), None)
        if first is None:
            return stamps
        seen = self.shown[first]
        return [*((name, at) for name, at in stamps if at <= seen), ("seen", seen)]

    def percentiles(self, levels: Sequence[float] = (50, 99)) -> dict[str, list[float]]:
        """Percentiles of `seconds` and `turn_seconds` in seconds, by name; names without a value are left out."""
        every = self.seconds() | self.turn_seconds()
        return {name: [percentile(values, level) for level in levels] for name, values in every.items() if values}

    def chrome_trace(self) -> dict[str, list[dict[str, object]]]:
        """The session as a Chrome trace for `json.dump`: a row for each place, the way to the eye, and the turns."""
        events: list[dict[str, object]] = []
        rows = [*self.places, "shown", "turns"]
        for row, name in enumerate(rows):
            events.append({"ph": "M", "name": "thread_name", "pid": 0, "tid": row, "args": {"name": name}})
        for header in list(self.chunks):
            for row in range(len(self.places)):
                began, ended = header.stamps[2 * row : 2 * row + 2]
                if began and ended:
                    about: dict[str, object] = {"index": header.index, "response_id": header.response_id}
                    events.append(_span(f"chunk {header.index}", row, began, ended, about))
            if (seen := self.shown.get(header.index)) is not None:
                about = {"index": header.index, "response_id": header.response_id}
                events.append(_span(f"chunk {header.index}", len(self.places), self._published(header), seen, about))
        for turn in list(self.turns):
            for (_, begin), (name, end) in pairwise(self.stamps(turn)):
                events.append(_span(name, len(rows) - 1, begin, end, {"response_id": turn.response_id}))
        return {"traceEvents": events}


def _span(name: str, row: int, began: float, ended: float, about: dict[str, object]) -> dict[str, object]:
    microseconds = {"ts": began * 1e6, "dur": (ended - began) * 1e6}
    return {"ph": "X", "name": name, "pid": 0, "tid": row, "args": about, **microseconds}


def percentile(values: Iterable[float], level: float) -> float:
    """The smallest value that at least `level` % of the values do not exceed.

    Raises:
        ValueError: no values, or a level outside (0, 100].
    """
    ordered = sorted(values)
    if not ordered or not 0 < level <= 100:
        raise ValueError("a percentile needs values, and a level in (0, 100]")
    return ordered[math.ceil(len(ordered) * level / 100) - 1]
