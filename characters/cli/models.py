"""`characters models`: bring, check and list models."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from characters.errors import UserError

if TYPE_CHECKING:
    from characters.checkpoints.structure import FileReport
    from characters.model.config import ModelConfig

as_json = click.option("--json", "machine", is_flag=True, help="For programs.")


@click.group()
def models() -> None:
    """Bring, check and list models.

    They live in ~/.local/share/characters-models, or below XDG_DATA_HOME, or where CHARACTERS_MODELS says.
    """


@models.command("list")
@as_json
def list_command(machine: bool) -> None:
    """List the models that have weights: how large they are, and which are on this machine."""
    from characters.checkpoints.install import size_text
    from characters.checkpoints.store import models_folder
    from characters.config import conf_names
    from characters.console import show_table
    from characters.model.config import load_model_config

    found = [(name, load_model_config(name)) for name in conf_names("model")]
    entries = [_entry(name, config) for name, config in found if config.weights]
    if machine:
        click.echo(json.dumps({"folder": str(models_folder()), "models": entries}, indent=1))
        return
    rows = [
        (
            str(entry["model"]),
            " and ".join(entry["portraits"]) or "not known",
            f"{entry['width']}x{entry['height']}, {entry['fps']} a second",
            size_text(entry["bytes"]),
            ", ".join(entry["licences"]),
            "yes" if entry["folder"] else f"no: characters models get {entry['model']}",
        )
        for entry in entries
    ]
    show_table(("model", "portraits", "frames", "size", "licence", "on this machine"), rows, right=[3])
    click.echo(f"Models are kept in {models_folder()}", err=not sys.stdout.isatty())


@models.command()
@click.argument("name")
def get(name: str) -> None:
    """Download a model.

    Shows licences and sizes first, and refuses if the disk has no room. A download that was cut goes on where it was.
    HF_ENDPOINT names another hub, HF_TOKEN is for repositories that want one.
    """
    from rich.table import Table

    from characters.checkpoints.install import get as bring_from_hub
    from characters.checkpoints.install import plan_get, size_text
    from characters.checkpoints.store import find_weights, models_folder, read_record
    from characters.console import PipedConsole

    config = _published(name)
    there = find_weights(config.weights)
    if there is not None and all(file.name in read_record(there) for file in config.files):
        click.echo(f"{name} is on this machine: {there}")
        return
    plan = plan_get(config)
    table = Table("file", "size", "licence", "from")
    for file, remote in plan.remotes:
        size = "here already" if file.name in plan.there else size_text(remote.size)
        table.add_row(file.file, size, file.licence or "see the repository", f"{file.repository}@{remote.commit[:7]}")
    console = PipedConsole(stderr=True)
    console.print(table)
    console.print(
        f"{size_text(plan.download)} to download; needs {size_text(plan.needed)} of {size_text(plan.free)} free at "
        f"{models_folder()}",
        soft_wrap=True,
        highlight=False,
        markup=False,
    )
    click.echo(str(bring_from_hub(config, plan)))


@models.command("import")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--as", "name", required=True, metavar="NAME", help="The model that the files are of.")
def import_command(folder: Path, name: str) -> None:
    """Bring a model from a folder that has its published files, for machines without a network."""
    import logging

    from characters.checkpoints.install import bring

    placed, notes = bring(_published(name), folder)
    for note in notes:
        logging.getLogger("characters").warning("%s", note)
    click.echo(str(placed))


@models.command()
@click.argument("name")
@click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda.")
@as_json
def check(name: str, device: str, machine: bool) -> None:
    """Check a model: every tensor by name and shape, every file's SHA-256, and one chunk.

    A window model makes its chunk in frames of 64 x 64 on a CPU.
    """
    from characters.checkpoints.check import check_files, run_once, weights_of
    from characters.model.config import load_model_config

    config = load_model_config(name)
    folder = weights_of(config, name)
    reports = check_files(config, folder)
    fault = next((report.fault for report in reports if report.fault), "")
    made = None if fault else run_once(config, folder, device)
    if machine:
        files = [dataclasses.asdict(report) for report in reports]
        run = dataclasses.asdict(made) if made else None
        click.echo(
            json.dumps({"model": name, "folder": str(folder), "fault": fault, "files": files, "pass": run}, indent=1)
        )
    else:
        _show(reports)
        if made:
            click.echo(
                f"{name} runs: {made.frames} frames of {made.width} x {made.height} on {made.device} in "
                f"{made.seconds:.2f} s"
            )
    if fault:
        raise UserError(f"{folder}: {fault}")


def _show(reports: list[FileReport]) -> None:
    """A row a file, then every tensor that is missing, wrong or ignored, by name."""
    from rich.table import Table

    from characters.console import PipedConsole

    kinds = ("used", "ignored", "missing", "wrong")
    table = Table("file", *kinds)
    for report in reports:
        table.add_row(report.name, *(str(len(getattr(report, kind))) for kind in kinds))
    console = PipedConsole()
    console.print(table)
    for report in reports:
        for kind in kinds[1:]:
            for name in getattr(report, kind):
                console.print(f"{report.name}: {kind}: {name}", soft_wrap=True, highlight=False, markup=False)


def _published(name: str) -> ModelConfig:
    """A model's config. Raises UserError for a model that has no published files."""
    from characters.model.config import load_model_config

    config = load_model_config(name)
    if not config.files:
        how = "its weights ship with this library" if config.weights else "nobody has trained it"
        raise UserError(f"model {name!r} has no files to bring: {how}")
    return config


def _entry(name: str, config: ModelConfig) -> dict[str, Any]:
    from characters.checkpoints.store import find_weights
    from characters.chunk import FPS

    folder = find_weights(config.weights)
    size = sum(file.size for file in config.files)
    if not config.files and folder is not None:
        size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    licences = sorted({file.licence for file in config.files if file.licence})
    return {
        "model": name,
        "portraits": config.portraits,
        "height": config.height,
        "width": config.width,
        "fps": config.window.fps if config.window is not None else FPS,
        "bytes": size,
        "licences": licences or ["Apache-2.0"],
        "folder": str(folder) if folder is not None else "",
    }
