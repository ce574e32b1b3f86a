"""What a load test found: figures, JSON, a picture, and lines to read."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

from matplotlib.figure import Figure

from actors.pipeline.trace import percentile
from characters.errors import UserError
from characters.output import whole_file
from deploy.load.users import LoadTest, Visit

STALL = 0.25  # seconds without anything new, whatever the model: six frames or more are missing
_SKEW = "needs marks in picture and sound, which only `python -m deploy.bench.room` puts there"


def report(test: LoadTest) -> dict[str, Any]:
    """As JSON.

    Seconds have names that end in _s, milliseconds in _ms. Frame rates count from a user's first frame to the last.
    """
    talked = [visit for visit in test.visits if len(visit.frames) > 1]
    return {
        "url": test.url,
        "users": len(test.visits),
        "seconds": round(test.seconds, 1),
        "server_before": test.health,
        "admission": admission(test.visits),
        "fps": _figures([fps(visit) for visit in talked]),
        "between_frames_ms": _figures(_gaps(v.frames for v in talked), 1e3),
        "picture_stalls": _stalls([visit.frames for visit in talked]),
        "sound_stalls": _stalls([visit.sounds for visit in talked]),
        "turn_ms": _figures([turn for visit in talked for turn in visit.turns], 1e3),
        "unanswered": sum(visit.unanswered for visit in talked),
        "late_chunks": sum(visit.late for visit in talked),
        "skew_ms": None,
        "skew_note": _SKEW,
        "own_lag_ms": _figures(test.lags, 1e3),
        "visits": [_visit(visit) for visit in test.visits],
    }


def admission(visits: Sequence[Visit]) -> dict[str, Any]:
    """How many users were admitted, and the reasons of the others in the server's own words."""
    seated = [visit for visit in visits if visit.seated is not None]
    waited = [visit for visit in seated if visit.position]
    return {
        "admitted": len(seated),
        "admitted_at_once": len(seated) - len(waited),
        "admitted_after_a_wait": len(waited),
        "still_queued_at_the_end": sum(visit.outcome == "queued" for visit in visits if visit.seated is None),
        "refused": sum(visit.outcome == "refused" for visit in visits),
        "failed": sum(visit.outcome == "failed" for visit in visits),
        "most_at_a_time": _most(seated),
        "wait_s": _figures([(visit.seated or 0.0) - visit.asked for visit in waited]),
        "reasons": dict(Counter(visit.reason for visit in visits if visit.reason)),
    }


def fps(visit: Visit) -> float:
    """Frames a second that one user saw."""
    return (len(visit.frames) - 1) / (visit.frames[-1] - visit.frames[0])


def lines(found: dict[str, Any]) -> Iterable[str]:
    """The report as lines of text."""
    let_in = found["admission"]
    yield (
        f"{found['users']} asked: {let_in['admitted_at_once']} let in at once, "
        f"{let_in['admitted_after_a_wait']} after a wait, {let_in['still_queued_at_the_end']} still queued at the end, "
        f"{let_in['refused']} refused, {let_in['failed']} failed; {let_in['most_at_a_time']} at a time at most"
    )
    for reason, times in let_in["reasons"].items():
        yield f"  {times} x {reason}"
    for name, key in (("frames a second", "fps"), ("between frames, ms", "between_frames_ms"), ("turn, ms", "turn_ms")):
        if figures := found[key]:
            told = ", ".join(f"{level} {value}" for level, value in figures.items() if level != "n")
            yield f"{name}: {told} (n = {figures['n']})"
    for what in ("picture", "sound"):
        stalls = found[f"{what}_stalls"]
        yield f"{what} stalls (over {1e3 * STALL:.0f} ms): {stalls['n']}, together {stalls['seconds']} s"
    yield f"unanswered questions: {found['unanswered']}; late chunks by the server's count: {found['late_chunks']}"
    yield f"skew: not measured; it {found['skew_note']}"
    if lag := found["own_lag_ms"]:
        yield f"this program itself was late by: median {lag['median']}, p99 {lag['p99']}, max {lag['max']} ms"


def write(test: LoadTest, file: Path) -> tuple[dict[str, Any], Path]:
    """Write the report to `file`, and a picture of it beside `file`. Returns the report and the picture's path.

    Raises:
        UserError: one of them cannot be written.
    """
    found, picture = report(test), picture_beside(file)
    with whole_file(file) as out:
        out.write(json.dumps(found, indent=1).encode() + b"\n")
    with whole_file(picture) as out:
        _draw(test, out)
    return found, picture


def picture_beside(file: Path) -> Path:
    """Where the picture of a report goes. Raises UserError if the report's own name is that of a picture."""
    picture = file.with_suffix(".png")
    if picture == file:
        raise UserError(
            f"cannot write {file}: the report is JSON, and its picture takes that name; use a name in .json"
        )
    return picture


def _draw(test: LoadTest, file: BinaryIO) -> None:
    figure = Figure(figsize=(12, 8), layout="constrained")
    (who, rate), (turns, gaps) = figure.subplots(2, 2)
    for visit in test.visits:
        seated = visit.ended if visit.seated is None else visit.seated
        who.barh(visit.number, seated - visit.asked, left=visit.asked, color="tab:orange")
        colour = "tab:red" if visit.outcome == "failed" else "tab:green"
        who.barh(visit.number, visit.ended - seated, left=seated, color=colour)
        if visit.outcome == "refused":
            who.plot(visit.asked, visit.number, "rx")
    who.set(title="waiting (orange), in a room (green), failed (red), refused (x)", xlabel="s", ylabel="user")
    for visit in test.visits:
        counted = Counter(int(at) for at in visit.frames)
        whole = sorted(counted)[1:-1]  # the first and the last second are not full
        rate.plot(whole, [counted[second] for second in whole], linewidth=0.8)
    for goal in {visit.goal for visit in test.visits if visit.goal}:
        rate.axhline(goal, color="grey", linestyle=":")
    rate.set(title="frames a second, each user", xlabel="s", ylim=(0, None))
    seconds = sorted(turn for visit in test.visits for turn in visit.turns)
    turns.step(seconds, [(i + 1) / len(seconds) for i in range(len(seconds))], where="post")
    turns.set(title=f"turns answered within ({len(seconds)})", xlabel="s", ylabel="share", ylim=(0, 1))
    gaps.hist([1e3 * gap for gap in _gaps(visit.frames for visit in test.visits)], bins=100, log=True)
    gaps.axvline(1e3 * STALL, color="red")
    gaps.set(title="between frames; red: a stall", xlabel="ms")
    figure.savefig(file, format="png", dpi=110)


def _visit(visit: Visit) -> dict[str, Any]:
    seen = len(visit.frames) > 1
    return {
        "user": visit.number,
        "outcome": visit.outcome,
        "reason": visit.reason,
        "position": visit.position,
        "asked_s": round(visit.asked, 2),
        "seated_s": None if visit.seated is None else round(visit.seated, 2),
        "ended_s": round(visit.ended, 2),
        "frames": len(visit.frames),
        "fps": round(fps(visit), 2) if seen else None,
        "turns_ms": [round(1e3 * turn) for turn in visit.turns],
        "unanswered": visit.unanswered,
        "late_chunks": visit.late,
    }


def _figures(values: Sequence[float], scale: float = 1.0) -> dict[str, float] | None:
    if not values:
        return None
    levels = {"min": 0.0001, "median": 50, "p95": 95, "p99": 99, "max": 100}
    return {"n": len(values)} | {name: round(scale * percentile(values, at), 2) for name, at in levels.items()}


def _gaps(times: Iterable[Sequence[float]]) -> list[float]:
    return [b - a for each in times for a, b in pairwise(each)]


def _stalls(times: Iterable[Sequence[float]]) -> dict[str, float]:
    long = [gap for gap in _gaps(times) if gap > STALL]
    return {"n": len(long), "seconds": round(sum(long), 2), "longest_s": round(max(long, default=0.0), 2)}


def _most(seated: Sequence[Visit]) -> int:
    """The most users in rooms at a time. One who leaves at the moment another comes is not counted with that one."""
    steps = sorted([(v.ended, -1) for v in seated] + [(v.seated or 0.0, 1) for v in seated])
    most = now = 0
    for _, step in steps:
        now += step
        most = max(most, now)
    return most
