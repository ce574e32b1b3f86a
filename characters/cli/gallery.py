"""`characters list` and `characters new`."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import click

from characters.errors import UserError

PORTRAIT_SIZE = (1088, 704)  # height, width kept on disk: the largest model's, and the aspect of all of them
PREVIEW_SIZE = (272, 176)  # the small model's


@click.command("list")
def list_command() -> None:
    """List the characters: the gallery's and your own."""
    from rich.markup import escape
    from rich.table import Table

    from characters.character import list_characters, user_folder
    from characters.console import PipedConsole

    table = Table("character", "name", "voice", "description")
    for c in list_characters():
        row = (c.slug, c.character.name, c.character.voice.engine, c.character.description)
        table.add_row(*(escape(cell) for cell in row))
    console = PipedConsole()
    console.print(table)
    console.print(f"Your own live in {user_folder()}", soft_wrap=True, highlight=False, markup=False)


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
    check_target(folder, force)
    fields = {"name": name.strip(), "description": description, "persona": persona, "greeting": greeting}
    try:
        Character(portrait="portrait.png", **fields)
    except ValueError as e:
        raise UserError(str(e)) from e
    next(open_voice(voice).speak("Hello."), None)  # only speaking shows whether the voice exists
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
    click.echo(f'try: characters render --character {usage} --text "Hello, I am {name.strip()}." --out {slug}.mp4')


def check_target(folder: Path, force: bool) -> None:
    """Raises UserError unless `folder` is empty or can be made, or is a character and `force` is set."""
    from characters.character import FILE_NAME

    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not (folder / FILE_NAME).is_file():
        raise UserError(f"{folder} exists and is not a character; choose another --out")
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
