"""One running application for the tests that talk: real Ray, real livekit-server, real Serve."""

from __future__ import annotations

import json
import os
import re
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deploy.cli.up import ENVIRONMENT

_FREE_SECONDS = 120.0
# Every process started from here on inherits it.
os.environ["CHARACTERS_TESTS"] = str(os.getpid())
_MARK = f"CHARACTERS_TESTS={os.getpid()}".encode()


@dataclass
class Application:
    """What a test may know of it."""

    address: str
    handles: Any  # ray.serve, for a look behind

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


@pytest.fixture(scope="session")
def application() -> Iterator[Application]:
    """Profile laptop, one pipeline."""
    from deploy.serving import livekit_server

    assert livekit_server.find_server() is not None, "no livekit-server: characters livekit install"
    # Metrics leave each process once a second instead of every ten.
    quick = {"RAY_metrics_report_interval_ms": "1000"}
    os.environ.update(ENVIRONMENT | {"RAY_AUTH_MODE": "disabled"} | quick)
    import ray

    if ray.is_initialized():
        ray.shutdown()  # of other tests, with other resources
    from ray import serve

    from deploy.app import build
    from deploy.serving.settings import free_ports

    port = free_ports(18000, 1)
    app = build({"http_port": port, "livekit_port": free_ports(17880), "grace_s": 3})
    ray.init("local", _node_ip_address="127.0.0.1", num_cpus=4, include_dashboard=False, object_store_memory=200 << 20)
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(app)
    yield Application(f"http://127.0.0.1:{port}", serve)
    serve.shutdown()
    ray.shutdown()
    assert not processes("livekit-server.*"), "the media server is still there"


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
