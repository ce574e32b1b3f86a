"""The commands of the served system, without starting it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from characters.cli.main import main
from characters.errors import UserError
from deploy.cli.up import temporary_folder


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    return int(end.value.code or 0)


def test_doctor_looks_at_everything(capsys: pytest.CaptureFixture[str]) -> None:
    code = run("doctor", "--port", "18123")
    lines = capsys.readouterr().out.splitlines()
    assert {line[:4].strip() for line in lines} <= {"ok", "warn", "fail"}
    assert code == (1 if any(line.startswith("fail") for line in lines) else 0)
    for subject in ("Python", "processor", "memory", "ray", "LiveKit", "page's port", "small model", "browser"):
        assert any(f"  {subject}: " in line for line in lines), subject


def test_doctor_names_a_taken_port(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert run("doctor", "--port", str(taken.getsockname()[1])) == 1
    assert "is taken by another program  ->  characters up --port NUMBER" in capsys.readouterr().out


def test_up_refuses_a_port_that_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert run("up", "--port", str(taken.getsockname()[1])) == 2
    assert "is taken by another program" in capsys.readouterr().err


@pytest.mark.parametrize("host", ["nonsense.invalid", "192.0.2.1", "::1", "a..b", "a b", "[::1"])
def test_up_refuses_a_host_that_is_not_ours(host: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("up", "--port", "18125", "--host", host) == 2
    error = capsys.readouterr().err
    assert f"cannot serve the page at {host!r}: " in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--profile", "laptob"], "did you mean 'laptop'"), (["--profile", "no/such.yaml"], "does not exist")],
)
def test_up_names_a_wrong_profile_before_it_installs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.setattr("deploy.serving.livekit_server.find_server", lambda: None)
    monkeypatch.setattr("deploy.serving.livekit_server.install_server", lambda: pytest.fail("minutes were spent"))
    assert run("up", "--port", "18124", *arguments) == 2
    assert message in capsys.readouterr().err


def test_noise_is_served_only_if_the_profile_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from deploy.app import build

    profile = tmp_path / "noise.yaml"
    profile.write_text("model: wan-1.3b\n")
    assert run("up", "--port", "18127", "--profile", str(profile)) == 2
    assert "set random_weights: true in the deploy profile" in capsys.readouterr().err
    for key, value in {"URL": "ws://127.0.0.1:9", "API_KEY": "key", "API_SECRET": "secret"}.items():
        monkeypatch.setenv(f"LIVEKIT_{key}", value)
    with pytest.raises(UserError, match="its pictures are noise"):
        build({"profile": str(profile)})
    profile.write_text("model: wan-1.3b\nrandom_weights: true\n")
    assert build({"profile": str(profile)}) is not None


def test_what_the_processes_leave_in_the_temporary_folder_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TMPDIR", raising=False)
    code = "import multiprocessing.util as u; print(u.get_temp_dir(), flush=True); import os; os._exit(0)"
    with temporary_folder() as folder:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        left = Path(done.stdout.strip())
        assert left.is_dir() and left.parent == folder and left.name.startswith("pymp-")
    assert not folder.exists() and "TMPDIR" not in os.environ


def test_install_without_go_names_the_three_ways(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run("livekit", "install") == 2
    assert "three ways" in capsys.readouterr().err
