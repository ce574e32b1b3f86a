"""The terminal that tables are printed to."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console
from rich.table import Table


class PipedConsole(Console):
    """Rich's console, except that it raises BrokenPipeError when its reader has gone, not SystemExit(1)."""

    def on_broken_pipe(self) -> None:
        """See `Console.on_broken_pipe`."""
        raise BrokenPipeError


class Forgiving:
    """A stream for progress: when its terminal has gone, what is written is lost and the work goes on."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.encoding = getattr(stream, "encoding", None) or "utf-8"

    def write(self, text: str) -> int:
        """See `TextIO.write`."""
        try:
            return self._stream.write(text)
        except (OSError, ValueError):
            return len(text)

    def flush(self) -> None:
        """See `TextIO.flush`."""
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()

    def isatty(self) -> bool:
        """See `TextIO.isatty`."""
        try:
            return self._stream.isatty()
        except ValueError:
            return False

    def fileno(self) -> int:
        """See `TextIO.fileno`."""
        return self._stream.fileno()


def show_table(heads: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> None:
    """Prints a table on a terminal; elsewhere plain lines: heads and rows, cells divided by tabs.

    Args:
        heads: of the columns.
        rows: their cells, plain text.
        right: columns of numbers.
    """
    from rich.markup import escape

    console = PipedConsole()
    if not console.is_terminal:
        for row in (heads, *rows):
            print("\t".join(" ".join(cell.split()) for cell in row), file=sys.stdout)
        return
    table = Table(*heads)
    for column in right:
        table.columns[column].justify = "right"
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    console.print(table)
