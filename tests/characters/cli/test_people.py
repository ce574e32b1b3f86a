"""What people really bring: names, texts and files that such tools stumble over."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
import unicodedata
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from characters.character import load_character, load_folder, slugify
from characters.cli.waiting import Waiting
from characters.errors import UserError
from characters.output import check_output, whole_file
from tests.characters.media.make import tone, write_audio

RunFixture = Callable[..., object]


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (600, 500, 3), np.uint8)).save(tmp_path / "me.png")
    return tmp_path / "me.png"


@pytest.mark.parametrize(
    ("one", "other"),
    [("राम", "रोम"), ("कमल", "कोमल"), ("แม่", "แม"), ("מָלֵא", "מלא"), ("ශ්‍රී", "ශ්රී"), ("தமிழ்", "தமழ")],
)
def test_names_that_differ_in_their_marks_have_different_folders(one: str, other: str) -> None:
    assert slugify(one) != slugify(other)


def test_one_name_has_one_folder_however_it_is_encoded(own_characters: Path, picture: Path, run: RunFixture) -> None:
    for name in ("Zoë", "École", "한국", "Ångström"):
        assert slugify(unicodedata.normalize("NFD", name)) == slugify(unicodedata.normalize("NFC", name))
    assert run("new", "--portrait", picture, "--name", unicodedata.normalize("NFD", "Zoë")).code == 0
    assert load_character("Zoë").slug == load_character(unicodedata.normalize("NFD", "zoë")).slug == "zoë"


@pytest.mark.parametrize(("one", "other"), [("Ann Lee", "Ann-Lee"), ("Bob", "Bob!"), ("STRASSE", "Straße")])
def test_two_names_never_meet(own_characters: Path, picture: Path, run: RunFixture, one: str, other: str) -> None:
    assert run("new", "--portrait", picture, "--name", one).code == 0
    for force in ((), ("--force",)):
        result = run("new", "--portrait", picture, "--name", other, *force)
        assert result.code == 2 and f"is the character {one!r}" in result.err
    assert load_character(slugify(one)).character.name == one
    assert run("new", "--portrait", picture, "--name", one, "--force").code == 0


@pytest.mark.parametrize("text", ["No", "Yes", "on", "007", "1e3", "12:30", "2024-05-01", "Null", "0x1F", "3.10"])
def test_text_fields_are_text(pip: Path, text: str) -> None:
    (pip / "character.yaml").write_text(
        f"name: {text}\nportrait: portrait.png\ngreeting: {text}\nvoice: {{speed: 1}}\n"
    )
    loaded = load_folder(pip).character
    assert (loaded.name, loaded.greeting, loaded.voice.speed) == (text, text, 1.0)


@pytest.mark.parametrize("name", ["Ann `touch owned`", "Bob $(touch owned)", "O'Brien & sons", 'Eve "E"'])
def test_a_suggested_command_can_be_pasted(own_characters: Path, picture: Path, run: RunFixture, name: str) -> None:
    out = run("new", "--portrait", picture, "--name", name).out
    command = shlex.split(out.split("try: ")[1])
    assert command[:4] == ["characters", "render", "--character", slugify(name)]
    assert command[command.index("--text") + 1] == f"Hello, I am {name}."


def test_a_link_is_written_through_and_a_mode_stays(tmp_path: Path) -> None:
    real = tmp_path / "real.txt"
    real.write_bytes(b"old")
    real.chmod(0o600)
    link = tmp_path / "link.txt"
    link.symlink_to("real.txt")
    with whole_file(link) as file:
        file.write(b"new")
    assert link.is_symlink() and real.read_bytes() == b"new" and real.stat().st_mode & 0o777 == 0o600
    (tmp_path / "to-be").symlink_to("later.txt")
    with whole_file(tmp_path / "to-be") as file:
        file.write(b"first")
    assert (tmp_path / "to-be").is_symlink() and (tmp_path / "later.txt").read_bytes() == b"first"
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UserError, match=r"link that leads to itself|symbolic links"):
        check_output(tmp_path / "loop")


def test_a_linked_character_goes_by_the_name_of_the_link(pip: Path, run: RunFixture) -> None:
    (pip.parent / "bob").symlink_to(pip, target_is_directory=True)
    listed = json.loads(run("list", "--json").out)
    assert {"bob", "pip"} <= {one["character"] for one in listed}
    assert load_character("bob").slug == "bob"


def test_lists_are_plain_in_a_pipe(pip: Path, run: RunFixture) -> None:
    lines = [line.split("\t") for line in run("list").out.splitlines()]
    assert ["pip", "Pip", "hibari", ""] in lines and all(len(line) == 4 for line in lines)


def program(*args: object, **more: str | None) -> subprocess.CompletedProcess[bytes]:
    environment = {k: v for k, v in (os.environ | more).items() if v is not None}
    command = [sys.executable, "-m", "tests.characters.cli.fake_stream", *map(str, args)]
    return subprocess.run(command, env=environment, capture_output=True, timeout=60)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_a_terminal_of_another_encoding(pip: Path, tmp_path: Path, encoding: str) -> None:
    (pip / "character.yaml").write_text("name: 安娜 Zoë\nportrait: portrait.png\n", encoding="utf8")
    sound = write_audio(tmp_path / "a.wav", tone(0.4, 24_000), 24_000, "pcm_s16le")
    out = tmp_path / "安娜.mp4"
    done = program("render", "-c", "pip", "--audio", sound, "-o", out, PYTHONIOENCODING=encoding)
    assert done.returncode == 0 and out.exists(), done.stderr
    assert program("list", PYTHONIOENCODING=encoding).returncode == 0


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_a_closed_terminal(pip: Path, tmp_path: Path, closed: str) -> None:
    sound = write_audio(tmp_path / "a.wav", tone(0.4, 24_000), 24_000, "pcm_s16le")
    command = [sys.executable, "-m", "tests.characters.cli.fake_stream", "render", "-c", "pip"]
    line = shlex.join([*command, "--audio", str(sound), "-o", str(tmp_path / "v.mp4")])
    assert subprocess.run(f"{line} {closed}", shell=True, timeout=60).returncode == 0
    assert (tmp_path / "v.mp4").exists()
    listing = shlex.join([*command[:3], "list"])
    assert subprocess.run(f"{listing} {closed}", shell=True, timeout=60).returncode == 0


def test_a_full_disk_behind_the_standard_output_is_told(pip: Path) -> None:
    line = f"{sys.executable} -m tests.characters.cli.fake_stream list > /dev/full"
    done = subprocess.run(line, shell=True, timeout=60, capture_output=True, text=True)
    assert done.returncode == 2 and "No space left" in done.stderr and done.stderr.count("\n") == 1


def test_a_user_without_a_home(run: RunFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)

    def nobody() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nobody)
    listed = run("list")
    assert listed.code == 0 and "amara" in listed.out and "set HOME" in listed.err
    assert load_character("amara").slug == "amara"
    made = run("new", "--portrait", "x.png", "--name", "Ann")
    assert made.code == 2 and "set HOME" in made.err


def test_a_hangup_leaves_nothing(pip: Path, tmp_path: Path) -> None:
    sound = write_audio(tmp_path / "long.wav", tone(60.0, 24_000), 24_000, "pcm_s16le")
    command = [sys.executable, "-m", "tests.characters.cli.fake_stream", "render", "-c", "pip"]
    running = subprocess.Popen(
        [*command, "--audio", str(sound), "-o", str(tmp_path / "v.mp4")],
        env=os.environ | {"FAKE_DELAY": "0.1"}, stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not any(p.stat().st_size for p in tmp_path.glob(".v.*.part")):
        assert running.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    running.send_signal(signal.SIGHUP)
    assert running.wait(30) == 129 and not list(tmp_path.glob(".v.*"))


def test_long_work_says_that_it_goes_on(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("characters.cli.waiting.PLAIN_SECONDS", 0.05)
    monkeypatch.setattr("characters.cli.waiting._QUICK_SECONDS", 0.1)
    with Waiting("building it") as waiting:
        waiting.detail = "3 packages"
        time.sleep(0.3)
    said = capsys.readouterr().err
    assert "building it: 0 s, 3 packages\n" in said and said.endswith("building it: done in 0 s\n")
    with Waiting("nothing"):
        pass
    assert capsys.readouterr().err == ""
