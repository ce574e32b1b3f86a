from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import characters.cli.main as program
from characters.errors import UserError

RunFixture = Callable[..., object]


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    code = (
        "import sys; from characters.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: print(sorted({'torch', 'numpy', 'av', 'rich', 'omegaconf'} & set(sys.modules)))"
    )
    started = time.perf_counter()
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert time.perf_counter() - started < 2.0  # 0.1 s on an idle machine
    assert "render" in out and out.endswith("[]\n")


def test_every_command_has_help(run: RunFixture) -> None:
    for name in program.COMMANDS:
        result = run(name, "--help")
        assert result.code == 0 and result.out.startswith(f"Usage: characters {name}"), name
    assert run().code == 0
    assert run("--help").code == 0


@pytest.mark.parametrize("args", [["sing"], ["render"], ["render", "--nonsense"], ["new", "--name"]])
def test_wrong_usage_is_one_line_and_2(run: RunFixture, args: list[str]) -> None:
    result = run(*args)
    assert result.code == 2
    assert result.err.startswith("error: ") and result.err.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (UserError("bad\n  thing"), 2, "error: bad thing\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (PermissionError(13, "Permission denied", "a/b"), 2, "error: a/b: Permission denied\n"),
        (OSError("oh"), 1, "error: this is a fault of the program: OSError: oh; run again with"),
        (ZeroDivisionError("oh"), 1, "error: this is a fault of the program: ZeroDivisionError: oh; run again with"),
    ],
)
def test_exit_codes(
    run: RunFixture, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, line: str
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(program.cli, "invoke", fail)
    result = run("list")
    assert result.code == code and result.err.startswith(line) and result.err.count("\n") == 1
    if code != 130:
        assert "Traceback" in run("list", "--debug").err


def test_a_closed_pipe_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "characters.cli.main", "list"], stdout=writer, stderr=subprocess.PIPE, text=True
    )
    os.close(writer)
    assert done.returncode == 0 and not done.stderr


@pytest.mark.system
def test_names_that_are_too_long_are_the_users_to_mend(run: RunFixture) -> None:
    name = "x" * 300
    for args, what in [
        (["render", "-c", name, "--text", "Hi", "-o", "v.mp4"], name),
        (["render", "-c", "ruby", "--audio", name, "-o", "v.mp4"], f"cannot read {name}"),
        (["new", "--portrait", name, "--name", "Ann", "--voice", "espeak"], f"cannot read {name}"),
    ]:
        result = run(*args)
        assert result.code == 2 and result.err == f"error: {what}: File name too long\n"


@pytest.mark.parametrize("number", ["nan", "inf", "0", "-1"])
@pytest.mark.parametrize("args", [["corpus", "--minutes"], ["calibrate", "--seconds"], ["loadtest", "--minutes"]])
def test_numbers_are_finite_and_positive(run: RunFixture, tmp_path: Path, args: list[str], number: str) -> None:
    result = run(*args, number, "--out", tmp_path / "out")
    assert result.code == 2 and f"Invalid value for '{args[1]}'" in result.err and result.err.count("\n") == 1
