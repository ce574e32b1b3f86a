from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from characters.character import load_character
from characters.media.face import find_faces
from characters.media.framing import Framing
from characters.media.portrait import character_portrait, load_portrait
from tests.characters.media.photographs import astronaut

RunFixture = Callable[..., object]


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (600, 500, 3), np.uint8)).save(tmp_path / "me.png")
    return tmp_path / "me.png"


def test_list(run: RunFixture, pip: Path) -> None:
    result = run("list")
    assert result.code == 0 and "pip" in result.out and "Pip" in result.out
    assert str(pip.parent) in result.err


@pytest.mark.system
def test_new_makes_a_character_that_loads(run: RunFixture, own_characters: Path, picture: Path) -> None:
    args = (
        "new",
        "--portrait",
        picture,
        "--name",
        "Ann: the 'second'",
        "--greeting",
        "Hi!\n${You}?",
        "--voice",
        "flite",
    )
    result = run(*args)
    folder = own_characters / "ann-the-second"
    assert result.code == 0 and str(folder / "preview.png") in result.out
    made = load_character("ann-the-second")
    assert made.character.name == "Ann: the 'second'"
    assert made.character.greeting == "Hi!\n${You}?" and made.character.voice.engine == "flite"
    with Image.open(folder / "portrait.png") as image:
        assert image.size == (704, 1088)
    with Image.open(folder / "preview.png") as image:
        assert image.size == (176, 272)
        assert (np.asarray(image) == load_portrait(made.portrait, 272, 176)).all()
    assert [p.name for p in own_characters.iterdir()] == ["ann-the-second"]

    again = run(*args)
    assert again.code == 2 and "--force" in again.err
    (folder / "note.txt").write_text("old")
    assert run(*args, "--force").code == 0
    assert not (folder / "note.txt").exists()
    assert [p.name for p in own_characters.iterdir()] == ["ann-the-second"]


def test_new_that_fails_at_the_end_keeps_the_old_one(
    run: RunFixture, own_characters: Path, picture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = ("new", "--portrait", picture, "--name", "Ann", "--force")
    assert run(*args).code == 0
    (own_characters / "ann" / "note.txt").write_text("old")
    replace = os.replace

    def fail(source: Path, target: Path) -> None:
        if Path(source).name == "new":
            raise OSError(errno.EIO, "Input/output error")
        replace(source, target)

    monkeypatch.setattr("os.replace", fail)
    result = run(*args)
    assert result.code == 2 and "Input/output error" in result.err
    assert (own_characters / "ann" / "note.txt").read_text() == "old"
    assert [p.name for p in own_characters.iterdir()] == ["ann"]


def test_new_in_a_folder_of_choice(run: RunFixture, tmp_path: Path, picture: Path) -> None:
    result = run("new", "--portrait", picture, "--name", "Ann", "--out", tmp_path / "deep" / "ann")
    assert result.code == 0
    assert load_character(tmp_path / "deep" / "ann").character.name == "Ann"


def test_new_touches_no_other_folder(run: RunFixture, tmp_path: Path, picture: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"cat")
    for target in (tmp_path / "photos", picture):
        result = run("new", "--portrait", picture, "--name", "Ann", "--out", target, "--force")
        assert result.code == 2 and "not a character" in result.err
    assert (tmp_path / "photos" / "cat.jpg").read_bytes() == b"cat"


def test_a_photograph_needs_consent_and_keeps_room_around_the_head(
    run: RunFixture, own_characters: Path, tmp_path: Path
) -> None:
    astronaut().save(tmp_path / "photo.png")
    args = ("new", "--portrait", tmp_path / "photo.png", "--name", "Eileen")
    refused = run(*args)
    assert refused.code == 2 and "--consent" in refused.err and refused.err.count("\n") == 1
    assert list(own_characters.iterdir()) == []

    result = run(*args, "--consent")
    assert result.code == 0 and "model 'small' animates drawn portraits only" in result.err, result.err
    who = load_character("eileen")
    photograph = who.character.photograph
    assert photograph is not None and who.character.kind == "photograph" and "agrees" in photograph.consent
    with Image.open(who.folder / "preview.png") as preview, Image.open(who.portrait) as poster:
        assert preview.size == (176, 272) and poster.size == (704, 1088)
    square = character_portrait(who, 512, 512, Framing(eyes=0.45, face=0.5))
    (face,), _ = find_faces(Image.fromarray(square))
    assert face.eyes == pytest.approx((256, 230), abs=15) and face.height == pytest.approx(256, rel=0.1)

    rendered = run("render", "-c", "eileen", "--text", "Hello.", "--out", tmp_path / "x.mp4")
    assert rendered.code == 0 and "on a photograph the lips hardly move" in rendered.err
    other = run(*args, "--consent", "--force", "--model", "leaptalk")
    assert other.code == 0 and "animates" not in other.err
    with Image.open(who.folder / "preview.png") as preview:
        assert preview.size == (512, 512)


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 2)])
def test_at_a_terminal_consent_is_asked_for(
    run: RunFixture, own_characters: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, code: int
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    astronaut().save(tmp_path / "photo.png")
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    result = run("new", "--portrait", tmp_path / "photo.png", "--name", "Eileen")
    assert result.code == code and "Is this true?" in result.err + result.out
    assert (own_characters / "eileen").exists() is (code == 0)


def test_a_wrong_photograph_section_is_a_line(run: RunFixture, pip: Path, tmp_path: Path) -> None:
    text = (pip / "character.yaml").read_text()
    for section, message in [
        ("{file: gone.jpg, eyes: [10, 10], height: 50}", "photograph.file 'gone.jpg' does not exist"),
        ("{file: ../portrait.png, eyes: [10, 10], height: 50}", "lies outside"),
        ("{file: portrait.png, eyes: [10], height: 50}", "photograph.eyes must be"),
        ("{file: portrait.png, eyes: [10, .nan], height: 50}", "must be finite"),
    ]:
        (pip / "character.yaml").write_text(f"{text}photograph: {section}\n")
        result = run("render", "-c", "pip", "--text", "Hello.", "--out", tmp_path / "x.mp4")
        assert result.code == 2 and message in result.err, result.err


@pytest.mark.system
def test_new_refuses_in_one_line_and_leaves_nothing(run: RunFixture, own_characters: Path, picture: Path) -> None:
    (picture.parent / "bad.png").write_bytes(picture.read_bytes()[:3_000])
    for args, message in [
        (("--portrait", picture, "--name", "..."), "cannot name a character"),
        (("--portrait", picture.parent / "bad.png", "--name", "Ann"), "damaged"),
        (("--portrait", picture.parent / "gone.png", "--name", "Ann"), "does not exist"),
        (("--portrait", picture, "--name", "Ann", "--voice", "opera"), "opera"),
        (("--portrait", picture, "--name", "Ann", "--voice", "espeak:nobody"), "unknown voice 'nobody'"),
        (("--portrait", picture, "--name", "Ann\x1b[31m"), "error: name must not contain control characters"),
        (("--portrait", picture, "--name", "Ann", "--out", "/proc/ann"), "cannot write"),
        (("--portrait", picture, "--name", "Ann", "--out", picture / "ann"), "cannot write"),
    ]:
        result = run("new", *args)
        assert result.code == 2 and message in result.err and result.err.count("\n") == 1, result.err
    assert list(own_characters.iterdir()) == []
