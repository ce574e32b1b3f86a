"""`characters list` and `characters new`."""

from __future__ import annotations

import json
import logging
import os
import shlex
import shutil
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from characters.errors import UserError

if TYPE_CHECKING:
    from characters.media.making import Made
    from characters.model.config import ModelConfig

log = logging.getLogger(__name__)

CONSENT = "The person on the photograph agrees to be shown as a talking character, or it shows nobody who could agree."


@click.command("list")
@click.option("--json", "as_json", is_flag=True, help="For another program.")
def list_command(as_json: bool) -> None:
    """List the characters: the gallery's and your own. Into a pipe: a line each, divided by tabs."""
    from characters.character import list_characters, user_folder
    from characters.console import show_table

    heads = ("character", "name", "voice", "description")
    found = list_characters()
    rows = [(c.slug, c.character.name, c.character.voice.engine, c.character.description) for c in found]
    if as_json:
        folders = [{"folder": str(c.folder)} for c in found]
        click.echo(json.dumps([dict(zip(heads, row, strict=True)) | f for row, f in zip(rows, folders, strict=True)]))
        return
    show_table(heads, rows)
    try:
        click.echo(f"Your own live in {user_folder()}", err=not sys.stdout.isatty())
    except UserError as e:
        click.echo(f"note: {e}", err=True)


@click.command()
@click.option("--portrait", required=True, type=click.Path(path_type=Path), help="A picture of head and shoulders.")
@click.option("--name", required=True, help="Name of the character.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder to make.  [default: among your own characters]")
@click.option("--description", default="", help="One line for `characters list`.")
@click.option("--persona", default="", help="Who the character is, for the language model.")
@click.option("--greeting", default="", help="What it says first.")
@click.option("--voice", default="hibari", show_default=True, help="A speech engine.")
@click.option("--model", default="small", show_default=True, help="The model that the preview is for.")
@click.option("--consent", is_flag=True, help=f'For a photograph. States: "{CONSENT}"')
@click.option("--force", is_flag=True, help="Replace a character that exists.")
def new(
    portrait: Path,
    name: str,
    out: Path | None,
    description: str,
    persona: str,
    greeting: str,
    voice: str,
    model: str,
    consent: bool,
    force: bool,
) -> None:
    """Make a character from a portrait.

    Looks for the face, crops the picture to it and says what it did and what it doubts. A photograph is kept with room
    around the head, and each model makes its own crop of it. preview.png beside it is exactly what --model sees.
    """
    from characters.character import Character, load_folder, slugify, user_folder
    from characters.media.making import make_portrait
    from characters.model.config import load_model_config
    from characters.speech import open_voice

    slug = slugify(name)
    folder = (out or user_folder() / slug).absolute()
    if folder.is_symlink():  # what it leads to is replaced; the link stays
        folder = folder.resolve()
    check_target(folder, force, None if out else name)
    fields = {"name": name.strip(), "description": description, "persona": persona, "greeting": greeting}
    try:
        Character(portrait="portrait.png", **fields)
    except ValueError as e:
        raise UserError(str(e)) from e
    config = load_model_config(model)
    made = make_portrait(portrait, config.height, config.width, config.framing)
    # Only speaking shows whether the voice exists, and what it cannot say.
    next(open_voice(voice).speak(f"Hello, I am {name.strip()}. {greeting}"), None)
    agreed = check_consent(portrait, consent) if made.photograph is not None else ""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name[:50]}.", dir=folder.parent) as work:
            draft = Path(work) / "new"
            draft.mkdir()
            write_character(draft, made, config, fields, voice, agreed)
            load_folder(draft)
            old = Path(work) / "old"
            try:
                if folder.exists():
                    shutil.copymode(folder, draft)
                    os.replace(folder, old)
                os.replace(draft, folder)
            except BaseException:
                if old.exists() and not folder.exists():
                    os.replace(old, folder)
                raise
    except OSError as e:
        raise UserError(f"cannot write {folder}: {e.strerror or e}") from e
    tell(portrait, made, config, model)
    click.echo(f"{folder}\npreview: {folder / 'preview.png'}")
    usage = str(folder) if out else slug
    hello = ["--text", f"Hello, I am {name.strip()}.", "--out", f"{slug}.mp4"]
    click.echo(f"try: {shlex.join(['characters', 'render', '--character', usage, *hello])}")


def check_target(folder: Path, force: bool, name: str | None = None) -> None:
    """Raises UserError unless `folder` is empty or can be made, or is a character and `force` is set.

    With `name` it must be the character of that very name: another may lead to the same folder.
    """
    from characters.character import FILE_NAME, load_folder, same_name

    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not (folder / FILE_NAME).is_file():
        raise UserError(f"{folder} exists and is not a character; choose another --out")
    if name is not None:
        try:
            there = load_folder(folder).character.name
        except UserError:
            there = name  # it is broken: --force may replace it
        if not same_name(there, name):
            raise UserError(f"{folder} is the character {there!r}, not {name!r}; choose another --name, or --out")
    if not force:
        raise UserError(f"{folder} is already a character; choose another --name, or --force to replace it")


def check_consent(portrait: Path, given: bool) -> str:
    """What is written down of the consent of the person on a photograph.

    Raises:
        UserError: nobody has given it.
    """
    if not given:
        asked = f"{portrait} looks like a photograph of a person."
        if not sys.stdin.isatty():
            raise UserError(f'{asked} If this is true, add --consent: "{CONSENT}"')
        click.echo(f"{asked}\n{CONSENT}", err=True)
        if not click.confirm("Is this true?", err=True):
            raise UserError("no character was made: the person on the photograph must agree")
    return f"{datetime.now(UTC):%Y-%m-%d}: {CONSENT}"


def tell(portrait: Path, made: Made, config: ModelConfig, model: str) -> None:
    """Say what was done to the picture, what is doubtful and whether the model can animate it."""
    from characters.model.config import portrait_note

    kind = "drawn" if made.photograph is None else "photograph"
    for note in made.notes:
        log.warning("%s: %s", portrait, note)
    if note := portrait_note(config, kind, model):
        log.warning("%s", note)


def write_character(
    folder: Path, made: Made, config: ModelConfig, fields: dict[str, str], voice: str, consent: str
) -> None:
    """Write portrait.png, preview.png, of a photograph photograph.jpg, and character.yaml into an existing folder.

    Raises:
        OSError: the folder cannot be written to.
    """
    import yaml

    from characters.character import FILE_NAME

    made.portrait.save(folder / "portrait.png")
    made.seen(config.height, config.width, config.framing).save(folder / "preview.png")
    data: dict[str, object] = {**fields, "portrait": "portrait.png"}
    if made.photograph is not None:
        assert made.place is not None
        made.photograph.save(folder / "photograph.jpg", quality=95, subsampling=0)
        place = {"eyes": [*made.place.eyes], "height": made.place.height, "roll": made.place.roll}
        data["photograph"] = {"file": "photograph.jpg"} | place | {"consent": consent}
    data["voice"] = {"engine": voice, "speed": 1.0, "pitch": 0.0}
    text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=100)
    (folder / FILE_NAME).write_text(text, encoding="utf-8")
