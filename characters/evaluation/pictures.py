"""Contact sheets and plots."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from characters.chunk import FPS
from characters.errors import UserError

if TYPE_CHECKING:
    from characters.evaluation.drift import Drift
    from characters.evaluation.lipsync import Curves

SHEET_ROWS = 12
LABEL = 14  # pixels above each column


def require_matplotlib() -> None:
    """Raise UserError if matplotlib is missing, which only plots need."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UserError("plots need matplotlib; install it with: pip install -e '.[train]'") from None


def contact_sheet(pictures: Tensor, columns: list[str], rows: list[str], path: Path) -> None:
    """Write rows of frames with a heading per column and a label per row.

    Args:
        pictures: uint8 [rows, columns, 3, H, W].
    """
    count, across, _, height, width = pictures.shape
    sheet = Image.new("RGB", (across * width, count * (height + LABEL) + LABEL), "white")
    draw = ImageDraw.Draw(sheet)
    for column, text in enumerate(columns):
        draw.text((column * width + 4, 1), text, fill="black")
    for row in range(count):
        top = LABEL + row * (height + LABEL)
        draw.text((4, top + 1), rows[row], fill="black")
        for column in range(across):
            image = pictures[row, column].permute(1, 2, 0).cpu().numpy()
            sheet.paste(Image.fromarray(np.ascontiguousarray(image)), (column * width, top + LABEL))
    sheet.save(path)


def drift_sheets(drift: Drift, folder: Path, seed: int) -> list[Path]:
    """The characters with the worst artefact scores, and some chosen at random: drift-worst.png, drift-random.png."""
    worst = drift.artefact.max(1)
    order = np.argsort(-worst)[:SHEET_ROWS]
    chosen = np.random.default_rng(seed).permutation(len(worst))[:SHEET_ROWS]
    columns = ["portrait", *(f"{w.seconds / 60:.2g} min" for w in drift.windows), "truth"]
    paths = []
    for name, rows in (("worst", order), ("random", chosen)):
        labels = [
            f"character {i}: artefact {worst[i]:.2f}, colour {drift.colour[i, -1]:.1f}, "
            f"identity {drift.identity[i, -1] / drift.floor[i, -1]:.2f} x"
            for i in rows
        ]
        path = folder / f"drift-{name}.png"
        contact_sheet(drift.pictures[torch.from_numpy(rows.copy())], columns, labels, path)
        paths.append(path)
    return paths


def plot_curves(curves: Curves, path: Path, count: int = 6) -> None:
    """True and measured mouth opening of some clips, taken evenly from all."""
    from matplotlib.figure import Figure

    rows = np.unique(np.linspace(0, len(curves.names) - 1, count).round().astype(int))
    figure = Figure(figsize=(11, 1.8 * len(rows)), layout="constrained")
    for axes, row in zip(np.atleast_1d(figure.subplots(len(rows), 1)), rows, strict=True):
        seconds = np.arange(len(curves.mouth[row])) / FPS
        axes.plot(seconds, curves.mouth[row][:, 0], label="truth", color="0.6", linewidth=2.5)
        axes.plot(seconds, curves.read_mouth[row][:, 0], label="read off the frames", color="C3", linewidth=1)
        axes.set_title(curves.names[row], fontsize=8, loc="left")
        axes.set_ylim(-0.1, 1.1)
    axes.set_xlabel("seconds")
    axes.legend(fontsize=7, loc="upper right")
    figure.savefig(path, dpi=110)


def plot_drift(drift: Drift, path: Path) -> None:
    """Artefact score, colour shift and identity error over time, with a line for each character."""
    from matplotlib.figure import Figure

    minutes = [w.seconds / 60 for w in drift.windows]
    panels = (
        ("artefact score", drift.artefact, 1.0),
        ("colour shift, /255", drift.colour, 3.0),
        ("identity error / autoencoder's", drift.identity / drift.floor, 1.25),
    )
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    for axes, (title, values, goal) in zip(figure.subplots(1, len(panels)), panels, strict=True):
        for kind, colour in enumerate(("C0", "C1", "C2")):
            lines = values[drift.kind == kind]
            if len(lines):
                axes.plot(minutes, lines.T, color=colour, linewidth=0.7, alpha=0.6)
                axes.plot([], [], color=colour, label=("people", "animals", "robots")[kind])
        axes.axhline(goal, color="black", linestyle="--", linewidth=1)
        axes.set_title(title, fontsize=9)
        axes.set_xlabel("minutes")
        axes.set_ylim(bottom=0)
    axes.legend(fontsize=7)
    figure.savefig(path, dpi=110)
