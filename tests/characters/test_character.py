from __future__ import annotations

import os
from pathlib import Path

import pytest

from characters.character import Voice, list_characters, load_character, slugify
from characters.errors import UserError


def test_found_by_name_and_by_folder(pip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pip", "Pip", str(pip), str(pip / "character.yaml")):
        loaded = load_character(name)
        assert loaded.slug == "pip"
        assert loaded.character.name == "Pip"
        assert loaded.character.voice == Voice(speed=1.1)
        assert loaded.portrait == pip.resolve() / "portrait.png"
    monkeypatch.chdir(pip)
    assert load_character(".").slug == "pip"


def test_own_characters_are_listed_beside_the_gallery(pip: Path) -> None:
    slugs = [c.slug for c in list_characters()]
    assert "pip" in slugs
    assert slugs == sorted(slugs)


def test_a_broken_one_does_not_hide_the_others(pip: Path, caplog: pytest.LogCaptureFixture) -> None:
    (pip.parent / "bad").mkdir()
    (pip.parent / "bad" / "character.yaml").write_text("nam: Bad\n")
    (pip.parent / "waiting").mkdir()
    os.mkfifo(pip.parent / "waiting" / "character.yaml")
    for name, portrait in [("loop", "loop.png"), ("long", "x" * 300), ("zero", '"a\\0b"')]:
        (pip.parent / name).mkdir()
        (pip.parent / name / "loop.png").symlink_to("loop.png")
        (pip.parent / name / "character.yaml").write_text(f"name: Bad\nportrait: {portrait}\n")
    assert [c.slug for c in list_characters() if c.folder.parent == pip.parent] == ["pip"]


def test_unknown_names_get_the_nearest(pip: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no character named 'pipp'; did you mean 'pip'"):
        load_character("pipp")
    with pytest.raises(UserError, match="no character named ''"):
        load_character("")
    with pytest.raises(UserError, match="not the folder of a character"):
        load_character(str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match=r"~nosuchuser/x is not the folder of a character"):
        load_character("~nosuchuser/x")
    with pytest.raises(UserError, match=r"it has no character\.yaml"):
        load_character(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: P\nportrait: portrait.png\nvoise: {}\n", "unknown key 'voise'; did you mean 'voice'"),
        ("name: P\n", "missing key 'portrait'"),
        ("name: P\nportrait: gone.png\n", "'gone.png' does not exist"),
        ("name: P\nportrait: ../secret.png\n", "lies outside"),
        ("name: P\nportrait: /etc/hostname\n", "lies outside"),
        ("name: P\nportrait: link.png\n", "lies outside"),
        ("name: P\nportrait: .\n", "does not exist"),
        ("name: P\nportrait: loop.png\n", "'loop.png' cannot be read: Symlink loop"),
        (f"name: P\nportrait: {'x' * 300}\n", "cannot be read: File name too long"),
        ('name: P\nportrait: "a\\0b"\n', "cannot be read: embedded null byte"),
        ('name: "P\\e[31m"\nportrait: portrait.png\n', "name must not contain control"),
        ('name: P\nportrait: portrait.png\ndescription: "a\\nb"\n', "description must not contain control"),
        ('name: P\nportrait: portrait.png\ngreeting: "a\\u202eb"\n', "greeting must not contain control"),
        ("name: ' '\nportrait: portrait.png\n", "name is empty"),
        ("name: P\nportrait: portrait.png\nvoice: {engine: 'piper:/etc/hostname'}\n", "voice.engine .* lies outside"),
        ("name: P\nportrait: portrait.png\nvoice: {engine: 'piper:link.png'}\n", "voice.engine .* lies outside"),
        ("name: P\nportrait: portrait.png\nvoice: {engine: 'piper:gone.onnx'}\n", "'gone.onnx' does not exist"),
        ("name: P\nportrait: portrait.png\nvoice: {speed: 9}\n", r"voice.speed is 9; it must lie between 0.5 and 2"),
        ("name: P\nportrait: portrait.png\nvoice: {pitch: .nan}\n", r"voice.pitch is nan"),
    ],
)
def test_bad_folders(pip: Path, text: str, message: str) -> None:
    (pip.parent / "secret.png").write_bytes(b"")
    (pip / "link.png").symlink_to(pip.parent / "secret.png")
    (pip / "loop.png").symlink_to("loop.png")
    (pip / "character.yaml").write_text(text)
    with pytest.raises(UserError, match=message):
        load_character("pip")


def test_texts_are_as_they_are_written(pip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "hunter2")
    text = 'name: 👩‍🚀 Zoë\nportrait: portrait.png\npersona: "a\\n\\tb\\u00a0c"\ngreeting: Hi ${oc.env:SECRET} ${\n'
    (pip / "character.yaml").write_text(text)
    character = load_character("pip").character
    assert (character.name, character.persona) == ("👩‍🚀 Zoë", "a\n\tb\u00a0c")
    assert character.greeting == "Hi ${oc.env:SECRET} ${"


def test_slugs() -> None:
    assert slugify("  Ada  Lovelace, II ") == "ada-lovelace-ii"
    assert slugify("Zoë") == "zoë"
    assert slugify("../../etc") == "etc"
    for name in ("", "...", "x" * 101):
        with pytest.raises(UserError, match="cannot name a character"):
            slugify(name)


def test_a_piper_voice_lies_in_the_characters_folder(pip: Path) -> None:
    (pip / "voice.onnx").write_bytes(b"")
    (pip / "character.yaml").write_text("name: P\nportrait: portrait.png\nvoice: {engine: 'piper:voice.onnx'}\n")
    assert load_character("pip").character.voice.engine == f"piper:{pip.resolve() / 'voice.onnx'}"
