"""The whole evaluation. All figures of the model card come from here."""

from __future__ import annotations

import dataclasses
import tempfile
import time
from pathlib import Path

import torch

from characters.evaluation import checks, drift, idle, lipsync, timing
from characters.evaluation.bench import Amount, Bench
from characters.evaluation.heldout import load_heldout
from characters.evaluation.pictures import drift_sheets, plot_curves, plot_drift, require_matplotlib
from characters.evaluation.report import Figure, write_json


def evaluate(bench: Bench, amount: Amount, folder: Path, settings: dict[str, object]) -> list[Figure]:
    """Measure a model and write evaluation.json, plots and contact sheets.

    Args:
        bench: the model and its conditions.
        amount: how much to measure.
        folder: where to write; made if need be.
        settings: more settings to write into the JSON.

    Returns:
        All figures, in the order of the table.

    Raises:
        UserError: held-out speech or matplotlib is missing.
        OSError: the folder cannot be written to.
    """
    require_matplotlib()
    clips = load_heldout()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass  # fail now, not at the end, if the folder cannot be written to
    started = time.monotonic()
    figures = checks.measure(bench, amount, clips)
    more, curves = lipsync.measure(bench, amount, clips)
    figures += more
    figures += idle.measure(bench, amount, clips)
    found = drift.measure(bench, amount, clips)
    figures += found.figures
    figures += timing.measure(bench, amount, clips)
    plot_curves(curves, folder / "lip-sync.png")
    plot_drift(found, folder / "drift.png")
    drift_sheets(found, folder, bench.seed)
    settings = settings | {
        "device": _device_name(bench.device),
        "dtype": str(bench.dtype).removeprefix("torch."),
        "sampler": dataclasses.asdict(bench.config.sampler),
        "amount": dataclasses.asdict(amount),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "seconds": round(time.monotonic() - started, 1),
    }
    write_json(folder / "evaluation.json", figures, settings, {"drift": found.table()})
    return figures


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
