"""A group of commands that imports a command's module only when it is called, so that `--help` answers at once."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click


class LazyGroup(click.Group):
    """A click group.

    Args:
        places: name -> (where its click command is, "module:attribute"; what the list of commands says).
    """

    def __init__(self, *args: Any, places: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._places = places

    def list_commands(self, ctx: click.Context) -> list[str]:
        """See `click.Group.list_commands`."""
        return list(self._places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """See `click.Group.get_command`."""
        if cmd_name not in self._places:
            return None
        module, _, attribute = self._places[cmd_name][0].partition(":")
        return getattr(importlib.import_module(module), attribute)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See `click.Group.format_commands`."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_text) for name, (_, help_text) in self._places.items()])
