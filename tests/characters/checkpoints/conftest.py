from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from characters.cli.main import main
from tests.characters.checkpoints.published import Hub, write_config, write_files


@dataclass
class Result:
    code: int
    out: str
    err: str

    @property
    def said(self) -> str:
        """The last line of stderr, which is the error if there is one."""
        return self.err.strip().splitlines()[-1] if self.err.strip() else ""


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The published files; nobody writes to them."""
    folder = tmp_path_factory.mktemp("published")
    write_files(folder)
    return folder


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of models, empty."""
    monkeypatch.setenv("CHARACTERS_MODELS", str(tmp_path / "models"))
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "models"


@pytest.fixture
def model(tmp_path: Path, published: Path) -> str:
    """The path of a config that names them."""
    return write_config(tmp_path / "tiny.yaml", published)


@pytest.fixture
def hub(published: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with Hub(published) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """Runs the program in this process."""
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("time.sleep", lambda _: None)  # the hub's library waits before it asks again

    def call(*args: object) -> Result:
        with pytest.raises(SystemExit) as stop:
            main([str(a) for a in args])
        said = capsys.readouterr()
        assert "Traceback" not in said.err, said.err
        return Result(int(stop.value.code or 0), said.out, said.err)

    assert sys.stderr is not None
    return call
