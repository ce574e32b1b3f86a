"""Where published checkpoints lie on this machine: one folder, with a folder of safetensors files for each model."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from characters.character import user_folder
from characters.errors import UserError
from characters.output import whole_file

RECORD = "model.json"
SHIPPED = Path(__file__).resolve().parents[1] / "weights"


@dataclass(frozen=True)
class Kept:
    """A file of a model on this machine.

    Attributes:
        name: in the model's folder.
        source: what it was made from: a file on the hub, or a path.
        source_sha256: of that.
        published: whether that is the file that the model's config names, as far as its SHA-256 tells.
        size, sha256: of the file here.
    """

    name: str
    source: str
    source_sha256: str
    published: bool
    size: int
    sha256: str


def models_folder() -> Path:
    """`$CHARACTERS_MODELS`, else `characters-models` beside the user's own characters."""
    set_to = os.environ.get("CHARACTERS_MODELS", "")
    if not set_to:
        return user_folder().with_name("characters-models")
    try:
        folder = Path(set_to).expanduser()
    except RuntimeError as error:  # ~nobody
        raise UserError(f"CHARACTERS_MODELS is {set_to!r}: {error}") from error
    if not folder.is_absolute():
        raise UserError(f"CHARACTERS_MODELS must be an absolute path, not {set_to!r}")
    return folder


def find_weights(name: str) -> Path | None:
    """The folder of a model's weights: those that ship, else those that were brought; None if there are none."""
    for folder in (SHIPPED / name, models_folder() / name):
        if folder.is_dir():
            return folder
    return None


def write_record(folder: Path, kept: list[Kept]) -> None:
    """Write down what a model's files are. Raises UserError if it cannot be written."""
    text = json.dumps({"files": [asdict(file) for file in kept]}, indent=1)
    with whole_file(folder / RECORD) as out:
        out.write(text.encode())


def read_record(folder: Path) -> Mapping[str, Kept]:
    """What a model's files are, by name; empty if nobody wrote it down."""
    try:
        entries = json.loads((folder / RECORD).read_text("utf-8"))["files"]
        return {entry["name"]: Kept(**entry) for entry in entries}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
