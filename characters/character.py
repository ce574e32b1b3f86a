"""Characters on disk: a folder with `character.yaml` and a portrait."""

from __future__ import annotations

import logging
import math
import os
import re
import unicodedata
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from characters.config import load_yaml
from characters.errors import UserError, did_you_mean

log = logging.getLogger(__name__)

FILE_NAME = "character.yaml"
GALLERY = Path(__file__).parent / "gallery"

# Characters that steer a terminal, end a line or change the direction of the text, and code points that stand for none.
# `str.isprintable` would also refuse no-break spaces and the joiners of emoji, which belong in a text.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


_JOINERS = "\u200c\u200d"  # they change what a letter looks like, and so what a name says


@dataclass(frozen=True)
class Voice:
    """How a character sounds.

    Attributes:
        engine: name of the speech engine; "piper:FILE.onnx" names a Piper voice inside the character's folder.
        speed: 1.0 is the engine's own; 0.5 to 2.0.
        pitch: semitones above the engine's own; -12 to 12.
    """

    engine: str = "hibari"
    speed: float = 1.0
    pitch: float = 0.0

    def __post_init__(self) -> None:
        if not 0.5 <= self.speed <= 2.0:
            raise ValueError(f"voice.speed is {self.speed:g}; it must lie between 0.5 and 2")
        if not -12.0 <= self.pitch <= 12.0:
            raise ValueError(f"voice.pitch is {self.pitch:g}; it must lie between -12 and 12 semitones")


@dataclass(frozen=True)
class Photograph:
    """A photograph of a person, from which each model's own portrait is cropped.

    Attributes:
        file: file name of the picture, inside the character's folder.
        eyes: the middle between the eyes, x and y in pixels.
        height: of the face, from where the hair begins to the chin, in pixels.
        roll: of the line of the eyes, in degrees, clockwise; a head that leans far is levelled.
        consent: what was stated about the person's consent when the character was made, and when.
    """

    file: str
    eyes: list[float]
    height: float
    roll: float = 0.0
    consent: str = ""

    def __post_init__(self) -> None:
        if len(self.eyes) != 2 or not self.height > 0:
            raise ValueError("photograph.eyes must be x and y in pixels, photograph.height more than 0")
        if not all(math.isfinite(number) for number in (*self.eyes, self.height, self.roll)):
            raise ValueError("photograph.eyes, height and roll must be finite")
        if not self.file.strip():
            raise ValueError("photograph.file is empty")


@dataclass(frozen=True)
class ToolConfig:
    """Something that a character's language model may call: exactly one of `url`, `python` and `mcp`.

    Attributes:
        name: what the model calls it: letters, digits, "_" and "-"; a server of kind mcp names its own.
        description: tells the model what it is for.
        parameters: what it takes, by name: a line for the model, or a JSON schema.
        url: http(s) address that the arguments are posted to as JSON; the answer's text is the result.
        python: name of an entry point of the group characters.tools.
        mcp: http(s) address of a Model Context Protocol server, all of whose tools are offered.
    """

    name: str = ""
    description: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    url: str = ""
    python: str = ""
    mcp: str = ""

    def __post_init__(self) -> None:
        if sum(map(bool, (self.url, self.python, self.mcp))) != 1:
            raise ValueError("a tool needs one of url, python and mcp")
        if not self.mcp and not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", self.name):
            raise ValueError(f"a tool's name is letters, digits, '_' and '-', not {self.name!r}")
        for address in (self.url, self.mcp):
            if address and not address.startswith(("http://", "https://")):
                raise ValueError(f"a tool's address begins with http:// or https://, not {address!r}")


@dataclass(frozen=True)
class Character:
    """The contents of `character.yaml`.

    Attributes:
        name: name that people see.
        portrait: file name of the picture, inside the character's folder.
        description: one line for lists.
        persona: who the character is; instructions for the language model.
        greeting: what the character says first.
        voice: how the character sounds.
        photograph: for a character who is a person on a photograph: the photograph.
        tools: what its language model may call.
    """

    name: str
    portrait: str
    description: str = ""
    persona: str = ""
    greeting: str = ""
    voice: Voice = field(default_factory=Voice)
    photograph: Photograph | None = None
    tools: list[ToolConfig] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """ "drawn" or "photograph": what its portrait is."""
        return "drawn" if self.photograph is None else "photograph"

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise ValueError("name is empty")
        if not self.portrait.strip():
            raise ValueError("portrait is empty")
        for key in ("name", "description", "persona", "greeting"):
            text = getattr(self, key)
            if key in ("persona", "greeting"):
                text = text.translate({ord("\n"): None, ord("\t"): None})
            if _CONTROL.search(text):
                raise ValueError(f"{key} must not contain control characters")


@dataclass(frozen=True)
class LoadedCharacter:
    """A character and where it lies.

    Attributes:
        slug: name of its folder.
        folder: the folder.
        character: the checked contents of its `character.yaml`.
        portrait: path of its picture, which exists and lies inside the folder.
    """

    slug: str
    folder: Path
    character: Character
    portrait: Path


def user_folder() -> Path:
    """Where the user's own characters live: `$XDG_DATA_HOME/characters`, else `~/.local/share/characters`.

    Raises:
        UserError: the user has no home folder.
    """
    home = os.environ.get("XDG_DATA_HOME")
    try:
        return (Path(home) if home and Path(home).is_absolute() else Path.home() / ".local/share") / "characters"
    except RuntimeError as e:  # HOME is not set, and the system does not know this user
        raise UserError("this user has no home folder: set HOME, or XDG_DATA_HOME to a folder for characters") from e


def same_name(one: str, other: str) -> bool:
    """Whether two names are one, however their accents are encoded."""
    return unicodedata.normalize("NFC", one).split() == unicodedata.normalize("NFC", other).split()


def _slug(name: str) -> str:
    """Lower case, words joined by '-'. The marks of a letter stay: in Indic scripts they are its vowels."""
    name = unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())
    kept = "".join(c if unicodedata.category(c)[0] in "LNM" or c in _JOINERS else " " for c in name)
    return "-".join(word for part in kept.split() if (word := part.strip(_JOINERS)))


def slugify(name: str) -> str:
    """The folder name for a character's name: lower case, words joined by '-'.

    Raises:
        UserError: the name has no letter and no digit, or is too long.
    """
    slug = _slug(name)
    if not any(c.isalnum() for c in slug) or len(slug.encode()) > 100:
        raise UserError(f"{name!r} cannot name a character: a name needs a letter or a digit, and at most 100 bytes")
    return slug


def character_folders() -> dict[str, Path]:
    """Folders of all known characters by slug, sorted. A user's own character hides one of the gallery."""
    found: dict[str, Path] = {}
    parents = [GALLERY]
    try:
        parents.append(user_folder())
    except UserError as e:
        log.info("%s", e)
    for parent in parents:
        try:
            found.update({f.parent.name: f.parent for f in parent.glob(f"*/{FILE_NAME}")})
        except OSError as e:
            log.warning("cannot read %s: %s", parent, e.strerror)
    return dict(sorted(found.items()))


def list_characters() -> list[LoadedCharacter]:
    """All known characters, by slug. A broken one is left out, and the log says so."""
    characters = []
    for folder in character_folders().values():
        try:
            characters.append(load_folder(folder))
        except UserError as e:
            log.warning("%s", e)
    return characters


def load_character(name_or_folder: str | Path) -> LoadedCharacter:
    """Find a character by name (the user's own first, then the gallery) or by the path of its folder.

    Raises:
        UserError: there is no such character (the message lists the nearest names), or an error of `load_folder`.
    """
    known = character_folders()
    name = str(name_or_folder)
    if name in known:
        return load_folder(known[name])
    try:
        folder = Path(name_or_folder).expanduser()
    except RuntimeError as e:  # ~nobody
        raise UserError(f"{name} is not the folder of a character: {e}") from e
    if folder.name == FILE_NAME and folder.is_file():
        folder = folder.parent
    if folder.is_dir() and name.strip():
        return load_folder(folder)
    if any(separator in name for separator in ("/", os.sep)):
        raise UserError(f"{folder} is not the folder of a character")
    slug = _slug(name)
    for found, folder in known.items():
        if slug and slug in (found, unicodedata.normalize("NFC", found)):
            return load_folder(folder)
    raise UserError(f"no character named {name!r}; {did_you_mean(slug, list(known))}")


def load_folder(folder: Path) -> LoadedCharacter:
    """Read one character's folder.

    Raises:
        UserError: `character.yaml` is missing or wrong, or the portrait or Piper voice that it names cannot be used.
    """
    file = folder / FILE_NAME
    if not file.exists():
        raise UserError(f"{folder} is not the folder of a character: it has no {FILE_NAME}")
    character = load_yaml(file, Character)
    root = folder.resolve()
    portrait = _inside(root, character.portrait, f"{file}: portrait")
    if character.photograph is not None:
        _inside(root, character.photograph.file, f"{file}: photograph.file")
    name, colon, model = character.voice.engine.partition(":")
    if name == "piper" and colon:
        voice = _inside(root, model, f"{file}: voice.engine")
        character = replace(character, voice=replace(character.voice, engine=f"piper:{voice}"))
    # A linked folder goes by the name of the link: that is where it was found.
    slug = Path(os.path.abspath(folder)).name
    return LoadedCharacter(slug=slug, folder=folder, character=character, portrait=portrait)


def _inside(root: Path, name: str, what: str) -> Path:
    """The file of this name in the folder `root`. Raises UserError, which begins with `what`, if there is none."""
    try:
        path = (root / name).resolve()  # follows links: no link leads out of the folder either
        there = path.is_file()
    except (OSError, RuntimeError, ValueError) as e:  # a path that is too long, a link to itself, a zero byte
        raise UserError(f"{what} {name!r} cannot be read: {getattr(e, 'strerror', None) or e}") from e
    if not path.is_relative_to(root):
        raise UserError(f"{what} {name!r} lies outside the character's folder")
    if not there:
        raise UserError(f"{what} {name!r} does not exist")
    return path
