"""Figures, each with its goal: the table, and evaluation.json."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from characters.console import PipedConsole
from characters.output import whole_file

SCHEMA = 1


@dataclass(frozen=True)
class Figure:
    """One measured number.

    Attributes:
        group: the table's section. name: what was measured, unique within the group.
        value: NaN where nothing could be measured.
        unit: as shown behind the value.
        at_least, at_most: the goal, if there is one.
    """

    group: str
    name: str
    value: float
    unit: str = ""
    at_least: float | None = None
    at_most: float | None = None

    @property
    def ok(self) -> bool | None:
        """Whether the goal is met; None without a goal. A number that could not be measured misses its goal."""
        if self.at_least is not None:
            return self.value >= self.at_least
        return None if self.at_most is None else self.value <= self.at_most

    @property
    def goal(self) -> str:
        """The goal as text."""
        if self.at_least is not None:
            return f"≥ {self.at_least:g}"
        return "" if self.at_most is None else f"≤ {self.at_most:g}"


def write_json(path: Path, figures: Sequence[Figure], settings: dict[str, Any], details: dict[str, Any]) -> None:
    """Write evaluation.json: {"schema": 1, "settings": {...}, "figures": [...], **details}; NaN becomes null."""
    rows = [asdict(f) | {"value": f.value if math.isfinite(f.value) else None, "ok": f.ok} for f in figures]
    document = {"schema": SCHEMA, "settings": settings, "figures": rows, **details}
    with whole_file(path) as file:
        file.write(json.dumps(document, indent=1, allow_nan=False).encode() + b"\n")


def print_table(figures: Sequence[Figure], title: str) -> None:
    """Show all figures, section by section, and how many goals are met."""
    table = Table("measured", "value", "goal", "", title=title, title_justify="left")
    table.columns[1].justify = table.columns[2].justify = "right"
    group = ""
    for figure in figures:
        if figure.group != group:
            if group:
                table.add_section()
            group = figure.group
            table.add_row(f"[bold]{group}[/bold]")
        verdict = {None: "", True: "[green]ok[/green]", False: "[bold red]MISS[/bold red]"}[figure.ok]
        table.add_row(f"  {figure.name}", f"{figure.value:.4g} {figure.unit}".rstrip(), figure.goal, verdict)
    console = PipedConsole()
    console.print(table)
    judged = [f for f in figures if f.ok is not None]
    console.print(f"{sum(f.ok is True for f in judged)} of {len(judged)} goals met")
