"""`serve run` as from a shell, two pipelines of a tiny model: rooms that know nothing of each other, and a queue."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.cli.up import ENVIRONMENT
from deploy.load.user import User
from deploy.serving.settings import HTTP_PORT, free_ports, is_free
from tests.deploy.conftest import Application, processes, wait_for
from tests.models import TINY

START_SECONDS = 180
# The decoder in the DiT's process: two processes less to start.
PROFILE = "model: {model}\nrandom_weights: true\ndevice: cpu\ncpus: 0.1\nflight: 2\nplan: {{decoder: 0}}\n"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    """`serve run` offers no choice of its port."""
    assert is_free(HTTP_PORT), f"port {HTTP_PORT} is taken"
    folder = tmp_path_factory.mktemp("serve")
    (folder / "tiny.yaml").write_text(TINY)
    (folder / "pair.yaml").write_text(PROFILE.format(model=folder / "tiny.yaml"))
    serve = Path(sys.executable).with_name("serve")
    settings = [f"profile={folder / 'pair.yaml'}", "pipelines=2", f"livekit_port={free_ports(17700)}"]
    settings += ["poll_s=300"]  # the third user only looks when the other two have talked
    command = [str(serve), "run", "--address", "local", "deploy.app:build", *settings]
    environment = os.environ | ENVIRONMENT | {"RAY_AUTH_MODE": "disabled"}
    log = folder / "log"
    ours = "livekit-server.*|ray::.*|raylet"
    before = set(processes(ours))  # of other tests
    with (
        log.open("wb") as out,
        subprocess.Popen(
            command,
            env=environment,
            stdout=out,
            stderr=out,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # a shell's & would ignore it
        ) as server,
    ):
        try:
            application = Application(f"http://127.0.0.1:{HTTP_PORT}")
            wait_for(lambda: server.poll() is not None or _pipelines(application) == 2, log.read_text(), START_SECONDS)
            assert server.poll() is None, log.read_text()
            yield application
        finally:
            server.send_signal(signal.SIGINT)
            try:
                server.wait(120)
            except subprocess.TimeoutExpired:
                server.kill()
    assert server.returncode == 0, log.read_text()
    wait_for(lambda: not set(processes(ours)) - before, "something is still there")


def _pipelines(application: Application) -> int:
    with contextlib.suppress(OSError, ValueError):
        return int(application.request("GET", "/healthz")["pipelines"])
    return 0


def test_two_rooms_know_nothing_of_each_other_and_the_third_user_waits(served: Application) -> None:
    names = {"ada": "ruby", "ben": "kenji"}
    sessions = {name: served.open_session(character) for name, character in names.items()}
    waiting = served.request("POST", "/v1/sessions", {"character": "miso", "participant_name": "cleo"})
    assert (waiting["state"], waiting["position"], waiting["participant_token"]) == ("NOT_READY", 1, None)

    async def ask(method: str, path: str) -> dict[str, Any]:
        return await asyncio.to_thread(served.request, method, path)

    async def quiet(*users: User) -> None:
        for user in users:
            await user.until(lambda user=user: time.monotonic() - user.quiet_since() > 1.0, "never quiet", 60)

    async def play() -> None:
        ada, ben, cleo = User(), User(), User()
        users = {"ada": ada, "ben": ben}
        for name, user in users.items():
            await user.join(sessions[name]["server_url"], sessions[name]["participant_token"])
        for user in users.values():
            await user.until(lambda user=user: user.frames and user.said_by("character"), "no greeting", 90)
        await quiet(ada, ben)
        for asking, other in ((ada, ben), (ben, ada)):
            asked = time.monotonic()
            await asking.type("What is your name?")
            await asking.until(lambda u=asking, t=asked: u.said_by("character", since=t), "no answer", 60)
            assert asking.loud(asked) and not other.loud(asked), "one was heard in the other's room"
            assert not other.said_by("character", since=asked)
            await quiet(ada, ben)
        for name, user in users.items():
            assert set(user.room.remote_participants) == {"character"}
            told = " ".join(user.said_by("character"))
            assert [c for c in names.values() if c.title() in told] == [names[name]]

        assert (await ask("GET", f"/v1/sessions/{waiting['id']}"))["position"] == 1
        await ada.leave()
        await ask("DELETE", f"/v1/sessions/{sessions['ada']['id']}")
        left = time.monotonic()
        while (found := await ask("GET", f"/v1/sessions/{waiting['id']}"))["state"] == "NOT_READY":
            assert time.monotonic() < left + 60, "the third does not get in"
            await asyncio.sleep(0.2)
        print(f"\nthe third got in {time.monotonic() - left:.1f} s after the first had left")
        await cleo.join(found["server_url"], found["participant_token"])
        await cleo.until(lambda: cleo.said_by("character"), "no greeting", 90)
        assert "Miso" in cleo.said_by("character")[0]
        frames = ben.frames
        await ben.until(lambda: ben.frames > frames + 24, "the second was disturbed")
        for user, session in ((cleo, waiting), (ben, sessions["ben"])):
            await user.leave()
            await ask("DELETE", f"/v1/sessions/{session['id']}")

    asyncio.run(play())


def test_the_page_and_its_parts_are_served(served: Application) -> None:
    with urllib.request.urlopen(served.address) as page:
        assert b"<title>Characters</title>" in page.read()
    with urllib.request.urlopen(f"{served.address}/openapi.json") as answer:
        assert "/v1/sessions" in json.load(answer)["paths"]
