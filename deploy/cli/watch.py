"""What `characters up` looks after while it runs: Ray's own processes, and whether the page answers."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from characters.errors import UserError

_LOOK_SECONDS = 0.5
_PAGE_SECONDS = 3.0  # without an answer; a busy machine is slow
_END_SECONDS = 5.0
_PR_SET_CHILD_SUBREAPER = 36
# Ray cannot go on without these. It starts the others again, or does without.
VITAL = {"gcs_server": "control service (gcs_server)", "raylet": "node service (raylet)"}


class RayEnded(UserError):
    """Ray's own processes have ended under the application."""


def keep_watch(
    processes: Mapping[str, Any], answers: Callable[[], bool], stop: threading.Event, say: Callable[[str], object]
) -> None:
    """Wait until `stop` is set, and say when the page stops answering and when it answers again.

    Args:
        processes: name and `subprocess.Popen` of each process of Ray's that was started here.
        answers: whether the page does.
        stop: ends the watch.
        say: tells the operator.

    Raises:
        RayEnded: a vital process has ended.
    """
    # Apart from the watch: a page that hangs must hide nothing.
    page = threading.Thread(target=_watch_page, args=(answers, stop, say), name="page", daemon=True)
    page.start()
    own = {process.pid for process in processes.values()}
    while not stop.wait(_LOOK_SECONDS):
        for name, title in VITAL.items():
            if (code := processes[name].poll()) is not None:
                how = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
                raise RayEnded(f"Ray's {title} {how}: everything is stopped; start `characters up` again")
        for orphan in set(_children(os.getpid())) - own:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(orphan, os.WNOHANG)


def _watch_page(answers: Callable[[], bool], stop: threading.Event, say: Callable[[str], object]) -> None:
    since, told = time.monotonic(), False
    while not stop.wait(_LOOK_SECONDS):
        now, there = time.monotonic(), answers()
        if there and told:
            say(f"the page answers again, after {time.monotonic() - since:.0f} s")
        if there:
            since, told = time.monotonic(), False
        elif not told and now - since > _PAGE_SECONDS:
            say("the page does not answer; conversations go on, and Ray Serve starts what answers again")
            told = True


def adopt_orphans() -> None:
    """From now on, processes below this one whose parent dies become its children, so that none is lost. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_descendants() -> None:
    """End every process below this one, whatever it does. Linux only: elsewhere Ray's processes end by themselves."""
    give_up = time.monotonic() + _END_SECONDS
    while (found := _descendants(os.getpid())) and time.monotonic() < give_up:
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.05)


def _descendants(pid: int) -> list[int]:
    return [below for child in _children(pid) for below in (child, *_descendants(child))]


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, file.read_text().split())
    return found
