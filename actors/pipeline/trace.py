"""What each chunk and each turn spent its time on: percentiles, and a file for chrome://tracing or Perfetto."""

from __future__ import annotations

import bisect
import math
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from actors.pipeline.header import Header
from characters.chunk import Clock

_NEWEST = 60  # chunks, among which one that has just been rendered must be
# A frame is seen so long after its publication at most, and, as far as a client knows the time, so long before at most.
_LATEST, _EARLIEST = 60.0, -0.5


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
        spans: names of the spans that a chunk has at the end of its path, in order.
        clock: of the model.
        capacity: chunks and turns kept; older ones are forgotten.

    Attributes:
        chunks: headers with all stamps.
        turns: finished ones.
        rendered: when a user saw a chunk's first frame, by the chunk's index.
    """

    def __init__(self, spans: Sequence[str], clock: Clock, capacity: int = 4096) -> None:
        self.spans, self.clock = tuple(spans), clock
        self.chunks: deque[Header] = deque(maxlen=capacity)
        self.turns: deque[Turn] = deque(maxlen=capacity)
        self.rendered: OrderedDict[int, float] = OrderedDict()
        self._newest: deque[Header] = deque(maxlen=_NEWEST)

    def __getstate__(self) -> dict[str, object]:
        """For pickle, which is slow, while a stage goes on entering chunks: copies, each made in one step."""
        copied = {name: getattr(self, name).copy() for name in ("chunks", "turns", "rendered", "_newest")}
        return vars(self) | copied

    def add(self, header: Header) -> None:
        """Enter a chunk that has reached the end of its path; one that was cut away as a whole leaves no trace."""
        if not header.frames:
            return
        self.chunks.append(header)
        self._newest.append(header)

    def add_turn(self, turn: Turn) -> None:
        """Enter a finished turn."""
        self.turns.append(turn)

    def add_render(self, frame: int, at: float) -> float | None:
        """A user's client showed frame number `frame` at `at`.

        Returns:
            Seconds from its publication to then; None if the frame was not published, or long ago, or if `at` is no
            time at which it can have been seen.
        """
        newest = list(self._newest)
        place = bisect.bisect_right(newest, frame, key=lambda header: header.first)
        if not place or frame >= newest[place - 1].first + newest[place - 1].frames:
            return None
        header = newest[place - 1]
        shown = at - (frame - header.first) / self.clock.fps
        seconds = shown - self._published(header)
        if not _EARLIEST < seconds < _LATEST:
            return None
        self.rendered.setdefault(header.index, shown)
        while len(self.rendered) > (self.chunks.maxlen or 0):
            self.rendered.popitem(last=False)
        return seconds

    def _published(self, header: Header) -> float:
        """When a chunk's first frame left the publisher, whose span ends with the last."""
        return header.stamps[2 * len(self.spans) - 1] - (header.frames - 1) / self.clock.fps

    def seconds(self) -> dict[str, list[float]]:
        """Seconds of every chunk, by what they were spent on.

        A span's name is the work in it. "a > b" is the hop between two spans: from when the chunk was finished in a and
        the role of b was free to when b began. "hops" is their sum, which is the cost of several processes. "queued" is
        the time that the chunk waited for roles that were busy with the chunk before it. "latency" is the time from the
        beginning of the first span to the beginning of the last. "publish_to_render" is a frame's time from the
        publisher to the user's eye, if a client reports it.
        """
        result: dict[str, list[float]] = {name: [] for name in self.spans}
        between = [f"{a} > {b}" for a, b in pairwise(self.spans)]
        result |= {name: [] for name in (*between, "hops", "queued", "latency", "publish_to_render")}
        before: tuple[float, ...] | None = None  # when each span of the chunk before ended
        for header in list(self.chunks):
            began = header.stamps[: 2 * len(self.spans) : 2]
            ended = header.stamps[1 : 2 * len(self.spans) : 2]
            if not all(began) or not all(ended):
                continue
            for name, a, b in zip(self.spans, began, ended, strict=True):
                result[name].append(b - a)
            if before is not None:
                ready = [max(end, free) for end, free in zip(ended[:-1], before[1:], strict=True)]
                hops = [start - at for start, at in zip(began[1:], ready, strict=True)]
                for name, hop in zip(between, hops, strict=True):
                    result[name].append(hop)
                result["hops"].append(sum(hops))
                result["queued"].append(sum(at - end for at, end in zip(ready, ended[:-1], strict=True)))
            result["latency"].append(began[-1] - began[0])
            if (rendered := self.rendered.get(header.index)) is not None:
                result["publish_to_render"].append(rendered - self._published(header))
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
        """A turn's stamps. The turn ends when its first responding frame was rendered, if that is known: what happened
        later, such as that the chunk has been played to its end, is left out.
        """
        stamps = list(turn.stamps.items())
        indices = (header.index for header in list(self.chunks) if header.response_id == turn.response_id)
        first = next((index for index in indices if index in self.rendered), None)
        if first is None:
            return stamps
        rendered = self.rendered[first]
        return [*((name, at) for name, at in stamps if at <= rendered), ("rendered", rendered)]

    def percentiles(self, levels: Sequence[float] = (50, 99)) -> dict[str, list[float]]:
        """Percentiles of `seconds` and `turn_seconds` in seconds, by name; names without a value are left out."""
        every = self.seconds() | self.turn_seconds()
        return {name: [percentile(values, level) for level in levels] for name, values in every.items() if values}

    def chrome_trace(self) -> dict[str, list[dict[str, object]]]:
        """The session as a Chrome trace for `json.dump`: a row for each span, the render, and the turns."""
        events: list[dict[str, object]] = []
        rows = [*self.spans, "publish_to_render", "turns"]
        for row, name in enumerate(rows):
            events.append({"ph": "M", "name": "thread_name", "pid": 0, "tid": row, "args": {"name": name}})
        for header in list(self.chunks):
            for row in range(len(self.spans)):
                began, ended = header.stamps[2 * row : 2 * row + 2]
                if began and ended:
                    about: dict[str, object] = {"index": header.index, "response_id": header.response_id}
                    events.append(_event(f"chunk {header.index}", row, began, ended, about))
            if (at := self.rendered.get(header.index)) is not None:
                about = {"index": header.index, "response_id": header.response_id}
                events.append(_event(f"chunk {header.index}", len(self.spans), self._published(header), at, about))
        for turn in list(self.turns):
            for (_, begin), (name, end) in pairwise(self.stamps(turn)):
                events.append(_event(name, len(rows) - 1, begin, end, {"response_id": turn.response_id}))
        return {"traceEvents": events}


def _event(name: str, row: int, began: float, ended: float, about: dict[str, object]) -> dict[str, object]:
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
