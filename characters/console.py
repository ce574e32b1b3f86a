"""The terminal that tables are printed to."""

from __future__ import annotations

from rich.console import Console


class PipedConsole(Console):
    """Rich's console, except that it raises BrokenPipeError when its reader has gone, not SystemExit(1)."""

    def on_broken_pipe(self) -> None:
        """See `Console.on_broken_pipe`."""
        raise BrokenPipeError
