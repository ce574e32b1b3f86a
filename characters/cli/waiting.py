"""What the program says of work that takes long and has no measure: that it goes on, for how long, and its end."""

from __future__ import annotations

import contextlib
import sys
import threading
import time

import click

PLAIN_SECONDS = 10.0  # between two lines where there is no terminal
_QUICK_SECONDS = 2.0  # of work that took less nothing is said


class Waiting:
    """Around work in a `with` block. On a terminal one line counts the seconds; elsewhere a line comes now and then.

    Args:
        what: is being done, such as "building livekit-server".

    Attributes:
        detail: where the work is just now; may be set from any thread.
    """

    def __init__(self, what: str) -> None:
        self._what, self.detail = what, ""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._tell, name="waiting", daemon=True)
        self._begin = time.monotonic()

    def __enter__(self) -> Waiting:
        self._begin = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._over.set()
        self._thread.join()
        if kind is None and self._seconds() >= _QUICK_SECONDS:
            self._print(f"{self._what}: done in {self._seconds():.0f} s\n")

    def _seconds(self) -> float:
        return time.monotonic() - self._begin

    def _tell(self) -> None:
        terminal = sys.stderr.isatty()
        while not self._over.wait(1.0 if terminal else PLAIN_SECONDS):
            line = f"{self._what}: {self._seconds():.0f} s{f', {self.detail}' if self.detail else ''}"
            self._print(f"\r\x1b[K{line[:100]}" if terminal else f"{line}\n")
        if terminal:
            self._print("\r\x1b[K")

    def _print(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # the terminal has gone; the work has not
            click.echo(text, err=True, nl=False)
