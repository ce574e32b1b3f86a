"""Percentiles, hops and the trace, from stamps made by hand."""

from __future__ import annotations

import json
import pickle
import time

import pytest

from actors.pipeline.header import Header
from actors.pipeline.trace import Trace, Turn, percentile
from characters.chunk import Clock


def head(index: int, response_id: int) -> Header:
    return Header(index, response_id, first=4 * index, frames=4)


def chunk(index: int, start: float) -> Header:
    """a works 1 s, the hop takes 0.25 s, b works 3 s, the hop takes 0.5 s, c works 1 s."""
    a = head(index, 2).stamped(0, start, start + 1).stamped(1, start + 1.25, start + 4.25)
    return a.stamped(2, start + 4.75, start + 5.75)


def test_seconds_of_unhindered_chunks() -> None:
    trace = Trace(["a", "b", "c"], Clock())
    for i in range(3):
        trace.add(chunk(i, 10.0 * (i + 1)))
    seconds = trace.seconds()
    assert seconds["a"] == [1.0] * 3 and seconds["b"] == [3.0] * 3 and seconds["c"] == [1.0] * 3
    assert seconds["a > b"] == [0.25] * 2 and seconds["b > c"] == [0.5] * 2
    assert seconds["hops"] == [0.75] * 2 and seconds["queued"] == [0.0] * 2
    assert seconds["latency"] == [4.75] * 3


def test_waiting_for_a_busy_place_is_no_hop() -> None:
    trace = Trace(["a", "b"], Clock())
    trace.add(head(0, 0).stamped(0, 1, 2).stamped(1, 2, 10))
    trace.add(head(1, 0).stamped(0, 2, 3).stamped(1, 10.5, 12))
    seconds = trace.seconds()
    assert seconds["a > b"] == [0.5]
    assert seconds["queued"] == [7.0]
    assert seconds["latency"] == [1.0, 8.5]


def test_chunks_with_missing_stamps_are_left_out() -> None:
    trace = Trace(["a", "b"], Clock())
    trace.add(head(0, 0).stamped(0, 1, 2))
    assert trace.percentiles() == {}


def test_percentiles_and_turns() -> None:
    trace = Trace(["a"], Clock())
    for i in range(100):
        trace.add(head(i, 0).stamped(0, 1.0, 2.0 + i))
    trace.add_turn(Turn(1, {"speech end": 1.0, "text": 1.5, "first frame": 3.0}))
    assert trace.percentiles([50, 99])["a"] == [50.0, 99.0]
    assert trace.percentiles([50])["speech end > text"] == [0.5]
    assert trace.percentiles([50])["turn"] == [2.0]


def test_what_a_user_has_seen() -> None:
    trace = Trace(["a", "b"], Clock())
    trace.add(head(0, -1).stamped(0, 1.0, 2.0).stamped(1, 2.0, 3.0))
    trace.add(head(1, 4).stamped(0, 2.0, 3.0).stamped(1, 3.0, 4.0))
    trace.add_turn(Turn(4, {"speech end": 1.0, "first frame": 3.5, "chunk over": 4.5}))
    assert trace.turn_seconds()["turn"] == [3.5], "nobody has told when it was rendered"
    # A chunk's last frame leaves when its last span ends.
    assert trace.add_render(3, 3.05) == pytest.approx(0.05)
    assert trace.add_render(4, 4.0) == pytest.approx(3 / 24)
    assert trace.add_render(400, 4.0) is None
    assert trace.seconds()["publish_to_render"] == pytest.approx([0.05, 3 / 24])
    assert trace.turn_seconds() == {"speech end > first frame": [2.5], "first frame > rendered": [0.5], "turn": [3.0]}
    assert [e["tid"] for e in trace.chrome_trace()["traceEvents"] if e["ph"] == "X"].count(2) == 2


@pytest.mark.parametrize("at", [float("nan"), float("inf"), -float("inf"), 1e300, -1e9, 2.0])
def test_no_frame_is_seen_when_it_cannot_have_been(at: float) -> None:
    trace = Trace(["a"], Clock())
    trace.add(head(0, 0).stamped(0, 2.0, 3.0))
    assert trace.add_render(0, at) is None and not trace.rendered
    assert trace.add_render(0, 3.0) == pytest.approx(3 / 24)


def test_reports_of_frames_cost_the_same_however_many_chunks_there_are() -> None:
    trace = Trace(["a"], Clock())
    for i in range(4096):
        trace.add(head(i, 0).stamped(0, i / 6, (i + 1) / 6))
    assert trace.add_render(4 * 4095, 4097 / 6) is not None and trace.add_render(4 * 4000, 4001 / 6) is None
    begin = time.process_time()
    for _ in range(5000):
        trace.add_render(4 * 4095, 4097 / 6)
        trace.add_render(10**18, 4097 / 6)
        trace.add_render(-7, 4097 / 6)
    assert time.process_time() - begin < 0.2


def test_frames_of_a_long_chunk_are_found_whatever_was_cut_away() -> None:
    trace = Trace(["a"], Clock(25, 28))
    for i, (first, frames) in enumerate(((0, 28), (28, 10), (56, 0), (38, 28))):
        trace.add(Header(i, 0, first=first, frames=frames).stamped(0, first / 25, (first + frames - 1) / 25))
    assert [header.index for header in trace.chunks] == [0, 1, 3]
    for frame, index in ((27, 0), (28, 1), (37, 1), (38, 3), (65, 3)):
        assert trace.add_render(frame, 0.1 + frame / 25) == pytest.approx(0.1)
        assert index in trace.rendered
    assert trace.rendered[3] == pytest.approx(0.1 + 38 / 25)
    assert trace.add_render(66, 3.0) is None


def test_bounded() -> None:
    trace = Trace(["a"], Clock(), capacity=10)
    for i in range(30):
        trace.add(head(i, 0))
    assert [header.index for header in trace.chunks] == list(range(20, 30))


class Entering(float):
    """A time that enters another chunk, turn and look into a trace while it is pickled."""

    trace: Trace

    def __reduce__(self) -> tuple[type[float], tuple[float]]:
        self.trace.add(chunk(9, 9.0))
        self.trace.add_turn(Turn(9, {}))
        self.trace.rendered[9] = 9.0
        return float, (float(self),)


def test_pickled_while_a_stage_enters_chunks() -> None:
    trace = Entering.trace = Trace(["a", "b", "c"], Clock())
    for i in range(3):
        trace.add(chunk(i, Entering(10.0 * i)))
        trace.add_turn(Turn(i, {"a": Entering(i)}))
        trace.rendered[i] = Entering(i)
    trace.add(head(3, 0).stamped(0, Entering(1), 2))
    copied = pickle.loads(pickle.dumps(trace))
    assert len(copied.chunks) == 4 and len(copied.turns) == 3 and list(copied.rendered) == [0, 1, 2]
    assert len(trace.chunks) > 4 and 9 in trace.rendered


def test_chrome_trace_is_json_with_a_row_for_each_place() -> None:
    trace = Trace(["a", "b", "c"], Clock())
    trace.add(chunk(7, 10.0))
    trace.add_turn(Turn(2, {"speech end": 1.0, "text": 1.5}))
    events = json.loads(json.dumps(trace.chrome_trace()))["traceEvents"]
    assert [e["args"]["name"] for e in events if e["ph"] == "M"] == ["a", "b", "c", "publish_to_render", "turns"]
    spans = [e for e in events if e["ph"] == "X"]
    assert [(e["name"], e["tid"], e["ts"], e["dur"]) for e in spans] == [
        ("chunk 7", 0, 10.0e6, 1e6),
        ("chunk 7", 1, 11.25e6, 3e6),
        ("chunk 7", 2, 14.75e6, 1e6),
        ("text", 4, 1e6, 0.5e6),
    ]
    assert spans[0]["args"] == {"index": 7, "response_id": 2}


@pytest.mark.parametrize("values, level", [([], 50), ([1.0], 0), ([1.0], 101)])
def test_percentile_refuses(values: list[float], level: float) -> None:
    with pytest.raises(ValueError):
        percentile(values, level)


def test_percentile_is_a_value_that_occurred() -> None:
    assert percentile([3.0, 1.0, 2.0], 50) == 2.0
    assert percentile([3.0, 1.0, 2.0], 99) == 3.0
    assert percentile([1.0], 1) == 1.0
