"""One running application for the tests that talk: `characters up`, with real Ray, livekit-server and Serve."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from deploy.serving.settings import free_ports

_START_SECONDS, _FREE_SECONDS = 300.0, 120.0
# Every process started from here on inherits it.
os.environ["CHARACTERS_TESTS"] = str(os.getpid())
_MARK = f"CHARACTERS_TESTS={os.getpid()}".encode()


@dataclass
class Application:
    """What a test may know of it.

    Attributes:
        address: of the page.
        mark: of its processes' environment, if they have one of their own.
    """

    address: str
    mark: str = field(default="", kw_only=True)

    def request(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """JSON in and out; raises urllib.error.HTTPError."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(self.address + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def open_session(self, character: str) -> dict[str, Any]:
        """A session that can be joined; waits until the pipeline is free of the one before."""
        session = self.request("POST", "/v1/sessions", {"character": character, "participant_name": "Ada"})
        give_up = time.monotonic() + _FREE_SECONDS
        while session["state"] == "NOT_READY" and time.monotonic() < give_up:
            time.sleep(0.2)
            session = self.request("GET", f"/v1/sessions/{session['id']}")
        assert session["state"] == "READY", session
        return session

    def state(self, session: dict[str, Any]) -> str:
        """Of a session, now."""
        return str(self.request("GET", f"/v1/sessions/{session['id']}")["state"])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those that share something follow one another; the browser goes before asyncio runs its own loops again."""

    def place(item: pytest.Item) -> tuple[bool, bool, bool]:
        fixtures = getattr(item, "fixturenames", ())
        browser, application = "browser" in fixtures, "application" in fixtures
        return browser or application, not browser, application

    items.sort(key=place)


def up(port: int, program: str = "characters.cli.main") -> list[str]:
    """The command that starts everything."""
    return [sys.executable, "-m", program, "up", "--no-dashboard", "--port", str(port)]


LIVEKIT = {"LIVEKIT_API_KEY": "key", "LIVEKIT_API_SECRET": "a secret of more than 32 characters"}


@pytest.fixture(scope="session")
def application() -> Iterator[Application]:
    """Profile laptop, one pipeline, started and stopped as by its user."""
    # Metrics leave each process once a second instead of every ten.
    environment = os.environ | LIVEKIT | {"RAY_metrics_report_interval_ms": "1000", "CHARACTERS_APPLICATION": "1"}
    command = up(free_ports(18000, 1), "tests.deploy.short_grace")
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as running:
        try:
            yield Application(_printed_address(running), mark="CHARACTERS_APPLICATION=1")
        finally:
            running.send_signal(signal.SIGINT)
            try:
                running.wait(60)
            except subprocess.TimeoutExpired:
                running.kill()
    assert running.returncode == 0
    wait_for(lambda: not processes("livekit-server.*|ray::.*|raylet|gcs_server"), "something is still there")


def _printed_address(running: subprocess.Popen[str]) -> str:
    assert running.stdout is not None
    guard = threading.Timer(_START_SECONDS, running.kill)
    guard.daemon = True
    guard.start()
    told = ""
    for line in running.stdout:
        told += line
        if found := re.search(r"open (http://127\.0\.0\.1:\d+)", line):
            guard.cancel()
            return found[1]
    raise AssertionError(f"`characters up` has not come up:\n{told}")


def processes(pattern: str) -> list[int]:
    """Those that these tests started, orphans too, whose command matches from its beginning or last path component."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            ours = _MARK in (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if ours and re.match(pattern, command.split(" ")[0].rsplit("/", 1)[-1]):
            found.append(int(folder.name))
    return found


def wait_for(condition: Callable[[], Any], what: str, timeout: float = 30.0) -> Any:
    """Poll."""
    give_up = time.monotonic() + timeout
    while not (found := condition()):
        assert time.monotonic() < give_up, what
        time.sleep(0.1)
    return found
