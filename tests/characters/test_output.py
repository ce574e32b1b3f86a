from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from characters.errors import UserError
from characters.output import check_output, whole_file
from characters.training import speech_corpus
from characters.training.speech_corpus import Utterance
from deploy.load.report import write as write_report
from deploy.planning.calibrate import write as write_rates
from deploy.planning.rates import load_rates
from tests.characters.media.test_video import largest_file
from tests.deploy.load.test_loadtest import outing


def test_a_file_appears_complete_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    with whole_file(target) as file:
        file.write(b"earlier")
        assert not target.exists()
    for error in (RuntimeError, KeyboardInterrupt):
        with pytest.raises(error), whole_file(target) as file:
            file.write(b"later")
            raise error
    with pytest.raises(UserError, match="the disk is full"), largest_file(1_000), whole_file(target) as file:
        file.write(bytes(2_000))
    assert target.read_bytes() == b"earlier" and os.listdir(tmp_path) == ["a.txt"]
    assert target.stat().st_mode & 0o777 == 0o666 & ~os.umask(os.umask(0o022))


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, message in [
        (Path("/dev/null"), "not a regular file"),
        (tmp_path / "pipe", "not a regular file"),
        (tmp_path, "it is a folder"),
        (tmp_path / "no" / "file", "does not exist"),
        (tmp_path / ("x" * 300), "File name too long"),
    ]:
        with pytest.raises(UserError, match=message):
            check_output(path)


@pytest.mark.parametrize("what", ["speech.npz", "rates.yaml", "load.json", "load.png"])
def test_a_full_disk_leaves_the_earlier_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    def noise(seed: int):
        random = np.random.default_rng(seed)
        yield "silence", Utterance(random.random(48_000, np.float32), random.random((48, 5), np.float32))

    monkeypatch.setattr(speech_corpus, "utterances", noise)
    (tmp_path / what).write_bytes(b"earlier")
    limit = 8_000 if what == "load.png" else 1_000  # bytes: what comes before fits, progress bar and report
    with pytest.raises(UserError, match=f"cannot write .*{what}: the disk is full"), largest_file(limit):
        match what:
            case "speech.npz":
                speech_corpus.build(tmp_path, 0.01, 1)
            case "rates.yaml":
                write_rates(load_rates("CPU"), tmp_path / what)
            case _:
                write_report(outing(), tmp_path / "load.json")
    assert (tmp_path / what).read_bytes() == b"earlier"
    assert not list(tmp_path.glob(".*"))


def test_a_corpus_that_cannot_be_written_is_said_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speech_corpus, "utterances", lambda seed: pytest.fail("hours were spent"))
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "folder" / "speech.npz").mkdir(parents=True)
    for out, message in [("file", "File exists"), ("file/deeper", "Not a directory"), ("folder", "it is a folder")]:
        with pytest.raises(UserError, match=message):
            speech_corpus.build(tmp_path / out, 0.01, 1)
