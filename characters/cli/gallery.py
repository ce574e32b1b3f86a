"""`characters list` and `characters new`."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import tempfile
from pathlib import Path

import click

from characters.errors import UserError

PORTRAIT_SIZE = (1088, 704)  # height, width kept on disk: the largest model's, and the aspect of all of them
PREVIEW_SIZE = (272, 176)  # the small model's


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
@click.option("--force", is_flag=True, help="Replace a character that exists.")
def new(
    portrait: Path,
    name: str,
    out: Path | None,
    description: str,
    persona: str,
    greeting: str,
    voice: str,
    force: bool,
) -> None:
    """Make a character from a portrait.

    Crops the picture to the model's aspect. preview.png beside it is exactly what the small model sees.
    """
    from characters.character import Character, load_folder, slugify, user_folder
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
    # Only speaking shows whether the voice exists, and what it cannot say.
    next(open_voice(voice).speak(f"Hello, I am {name.strip()}. {greeting}"), None)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name[:50]}.", dir=folder.parent) as work:
            draft = Path(work) / "new"
            draft.mkdir()
            write_character(draft, portrait, fields, voice)
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


def write_character(folder: Path, portrait: Path, fields: dict[str, str], voice: str) -> None:
    """Write portrait.png, preview.png and character.yaml into an existing folder.

    Raises:
        UserError: the portrait cannot be used.
        OSError: the folder cannot be written to.
    """
    import yaml
    from PIL import Image

    from characters.character import FILE_NAME
    from characters.media.portrait import check_content, load_portrait

    picture = load_portrait(portrait, *PORTRAIT_SIZE)
    check_content(picture, portrait)
    Image.fromarray(picture).save(folder / "portrait.png")
    Image.fromarray(load_portrait(folder / "portrait.png", *PREVIEW_SIZE)).save(folder / "preview.png")
    data = fields | {"portrait": "portrait.png", "voice": {"engine": voice, "speed": 1.0, "pitch": 0.0}}
    text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=100)
    (folder / FILE_NAME).write_text(text, encoding="utf-8")
