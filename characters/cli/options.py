"""What several commands have in common: their numbers, and the console that they print to."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console


class Finite(click.FloatRange):
    """A `click.FloatRange` without infinity and NaN, which every comparison lets through."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """See `click.ParamType.convert`."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


def open_console(width: int | None = None) -> Console:
    """Rich's console, on stdout; a reader that has gone is a BrokenPipeError, not its SystemExit(1)."""
    from rich.console import Console

    class PipedConsole(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return PipedConsole(width=width)
