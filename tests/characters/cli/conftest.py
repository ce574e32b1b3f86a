from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from characters.cli.main import main
from tests.characters.cli import fake_stream


@dataclass
class Result:
    code: int
    out: str
    err: str


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """Runs the program in this process, with the stand-in for the stream; returns its exit code and what it said."""
    monkeypatch.setitem(sys.modules, "characters.generate.stream", fake_stream)
    monkeypatch.setattr("signal.signal", lambda *_: None)

    def call(*args: object) -> Result:
        with pytest.raises(SystemExit) as stop:
            main([str(a) for a in args])
        said = capsys.readouterr()
        return Result(int(stop.value.code or 0), said.out, said.err)

    return call
