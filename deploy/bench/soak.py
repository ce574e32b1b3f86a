"""Sessions of a minute, one after the other, for hours: what each user got, and what grows in the application.

    python -m deploy.bench.soak --minutes 60
    python -m deploy.bench.soak --profile stub --minutes 360 --session 360
    python -m deploy.bench.soak --minutes 200 --users 3 --pipelines 3

It starts the application, sends users as `characters loadtest` does, and looks at its processes every ten seconds. The
slopes are by least squares, over the time after the first third: until then caches fill. The profile "stub" has a model
that costs next to nothing, so that hours of it disturb nobody; all else is real.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from characters.errors import UserError
from deploy.bench.census import Census, size_of, slope
from deploy.bench.running import Running, running
from deploy.load.report import fps, report
from deploy.load.users import loadtest

GOOD_FPS = 23.9
GOOD_SHARE = 0.999
_LOOK_SECONDS = 10.0
_WARM_UP = 1 / 3


@dataclass
class Look:
    """The application at one moment.

    Attributes:
        seconds: since the start.
        census: its processes.
        megabytes: of its temporary folder.
    """

    seconds: float
    census: Census
    megabytes: float


@dataclass
class Soak:
    """What was found.

    Attributes:
        looks: in order.
        rates: frames a second of every session that had two.
        sessions: asked for.
        failures: reasons of those that failed.
        stalls: (picture, sound) interruptions of all sessions together.
        late: chunks.
    """

    looks: list[Look] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    sessions: int = 0
    failures: list[str] = field(default_factory=list)
    stalls: tuple[int, int] = (0, 0)
    late: int = 0


def soak(app: Running, minutes: float, session_minutes: float, users: int, character: str) -> Soak:
    """Send users until the time is up.

    Args:
        app: what is soaked.
        minutes: in all; the last sessions end after it.
        session_minutes: of each session.
        users: at a time.
        character: slug.
    """
    found, over, began = Soak(), threading.Event(), time.monotonic()

    def look() -> None:
        while True:
            found.looks.append(Look(time.monotonic() - began, app.census(), size_of(app.folder)))
            if over.wait(_LOOK_SECONDS):
                return

    watch = threading.Thread(target=look, name="looks", daemon=True)
    watch.start()
    try:
        while time.monotonic() - began < 60 * minutes:
            test = loadtest(app.address, users, session_minutes, character, say=lambda line: None)
            about = report(test)
            found.sessions += users
            found.rates += [fps(visit) for visit in test.visits if len(visit.frames) > 1]
            found.failures += [visit.reason for visit in test.visits if visit.outcome != "talked"]
            stalls = about["picture_stalls"]["n"], about["sound_stalls"]["n"]
            found.stalls = found.stalls[0] + stalls[0], found.stalls[1] + stalls[1]
            found.late += about["late_chunks"]
            print(f"{time.monotonic() - began:7.0f} s  {found.sessions} sessions, {found.rates[-1:]} fps", flush=True)
    finally:
        over.set()
        watch.join()
    return found


def slopes(looks: Sequence[Look]) -> dict[str, tuple[float, float]]:
    """Level at the end and growth an hour, by what is counted; memory in MB."""
    steady = [look for look in looks if look.seconds >= _WARM_UP * looks[-1].seconds]
    times = [look.seconds for look in steady]
    kinds = sorted({kind for look in steady for kind in look.census.memory})
    series: dict[str, list[float]] = {
        f"MB {kind}": [look.census.memory.get(kind, 0.0) for look in steady] for kind in kinds
    }
    series["MB in all"] = [sum(look.census.memory.values()) for look in steady]
    series["descriptors"] = [float(look.census.descriptors) for look in steady]
    series["threads"] = [float(look.census.threads) for look in steady]
    series["files"] = [float(look.census.files) for look in steady]
    series["MB of files"] = [look.megabytes for look in steady]
    series["/dev/shm"] = [float(look.census.shared) for look in steady]
    return {name: (values[-1], slope(times, values)) for name, values in series.items()}


def show(found: Soak) -> dict[str, Any]:
    """Print the figures; returns them for JSON."""
    grown = slopes(found.looks)
    print(f"\n{'':32} {'at the end':>12} {'an hour':>12} {'%':>8}")
    for name, (level, growth) in grown.items():
        share = f"{100 * growth / level:+8.2f}" if level else ""
        print(f"{name:32} {level:12.1f} {growth:+12.2f} {share}")
    good = sum(rate >= GOOD_FPS for rate in found.rates)
    share = good / found.sessions if found.sessions else 0.0
    print(f"{found.sessions} sessions, {good} of them ({share:.1%}) at {GOOD_FPS} fps or more; goal {GOOD_SHARE:.1%}")
    print(f"stalls of picture and sound: {found.stalls}; late chunks: {found.late}; failed: {found.failures}")
    return {
        "sessions": found.sessions,
        "good": good,
        "fps": [round(rate, 2) for rate in found.rates],
        "stalls": found.stalls,
        "late_chunks": found.late,
        "failures": found.failures,
        "slopes": {name: {"level": round(a, 2), "an_hour": round(b, 3)} for name, (a, b) in grown.items()},
        "looks": [
            {"seconds": round(look.seconds, 1), "memory": {k: round(v, 1) for k, v in look.census.memory.items()}}
            for look in found.looks
        ],
    }


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="laptop", help='of conf/deploy, a path, or "stub"')
    parser.add_argument("--pipelines", type=int, default=1)
    parser.add_argument("--users", type=int, default=1, help="at a time")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--session", type=float, default=1.0, help="minutes of each session")
    parser.add_argument("--character", default="ruby")
    parser.add_argument("--out", type=Path, default=Path("soak.json"))
    args = parser.parse_args()
    with running(args.profile, args.pipelines, print) as app:
        found = soak(app, args.minutes, args.session, args.users, args.character)
    args.out.write_text(json.dumps(show(found), indent=1))


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        raise SystemExit(f"error: {error}") from None
