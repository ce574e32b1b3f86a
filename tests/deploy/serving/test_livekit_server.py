from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from characters.errors import UserError
from deploy.serving import livekit_server
from deploy.serving.settings import LivekitAccess, free_ports


@pytest.fixture
def access() -> LivekitAccess:
    port = free_ports(7900)
    return LivekitAccess(f"ws://127.0.0.1:{port}", "key", "a secret of more than 32 characters", own=True, port=port)


def test_the_configuration_stays_on_this_machine(access: LivekitAccess) -> None:
    config = json.loads(livekit_server.server_config(access, "http://127.0.0.1:8000/livekit/webhook"))
    assert config["bind_addresses"] == ["127.0.0.1"]
    assert config["rtc"]["node_ip"] == "127.0.0.1"
    assert config["rtc"]["stun_servers"] == []
    assert config["webhook"] == {"api_key": "key", "urls": ["http://127.0.0.1:8000/livekit/webhook"]}


def test_without_program_and_go_the_three_ways_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert livekit_server.find_server() is None
    for attempt in (livekit_server.require_server, livekit_server.install_server):
        with pytest.raises(UserError, match=r"\(1\).*Go.*\(2\).*PATH.*\(3\).*LIVEKIT_URL"):
            attempt()


def test_a_program_on_the_path_is_found_and_our_own_comes_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    on_path = tmp_path / "livekit-server"
    on_path.write_text("#!/bin/sh\n")
    on_path.chmod(0o755)
    assert livekit_server.find_server() == on_path
    own = livekit_server.program_folder() / "livekit-server"
    own.parent.mkdir(parents=True)
    own.write_text("#!/bin/sh\n")
    own.chmod(0o755)
    assert livekit_server.find_server() == own


def test_a_program_that_ends_at_once_is_the_users_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, access: LivekitAccess
) -> None:
    program = tmp_path / "livekit-server"
    program.write_text("#!/bin/sh\necho no room for me; exit 3\n")
    program.chmod(0o755)
    monkeypatch.setattr(livekit_server, "find_server", lambda: program)
    with pytest.raises(UserError, match="ended at once: no room for me"):
        livekit_server.LivekitServer(access)


def test_what_the_server_says_is_bounded_and_it_starts_without_code_in_a_fork(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, access: LivekitAccess
) -> None:
    program = tmp_path / "livekit-server"
    program.write_text("#!/bin/sh\nhead -c 3000000 /dev/zero | tr '\\0' x; echo; echo $LIVEKIT_CONFIG; sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setattr(livekit_server, "find_server", lambda: program)
    monkeypatch.setattr(livekit_server, "answers", lambda url: True)
    begun, popen = [], subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: begun.append(k) or popen(*a, **k))
    server = livekit_server.LivekitServer(access)
    try:
        give_up = time.monotonic() + 20
        while not server._last_line().startswith("{") and time.monotonic() < give_up:
            time.sleep(0.05)
        assert len(server._said) <= 65_536 and server._last_line().endswith("}")
        assert "preexec_fn" not in begun[0]
        assert os.getpgid(server.pid) == server.pid, "Ctrl-C would reach it"
    finally:
        server.stop()
    assert not server.running


def test_the_server_starts_answers_and_stops(access: LivekitAccess) -> None:
    server = livekit_server.LivekitServer(access)
    assert livekit_server.answers(access.url)
    server.stop()
    assert not server.running
    assert not livekit_server.answers(access.url)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends it")
def test_the_server_dies_with_its_parent(access: LivekitAccess) -> None:
    code = (
        "from deploy.serving.livekit_server import LivekitServer; import os, time\n"
        "from deploy.serving.settings import LivekitAccess\n"
        f"s = LivekitServer(LivekitAccess({access.url!r}, 'key', {access.secret!r}, port={access.port}))\n"
        "print(s.pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    give_up = time.monotonic() + 20
    while Path(f"/proc/{pid}").exists() and time.monotonic() < give_up:
        time.sleep(0.05)
    assert not livekit_server.answers(access.url)
