"""Runway's SDKs, as they come from PyPI and npm, against the ingress with pipelines that are not there."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn

from deploy.serving.api import create_api
from deploy.serving.records import Records
from deploy.serving.settings import Settings
from tests.deploy.serving.test_api import FakeManager, FakePipelines
from tests.deploy.serving.test_webhook import ACCESS
from tests.deploy.store import FakeStore

AGENTS = Path(os.environ.get("CHARACTERS_AGENTS", Path(__file__).resolve().parents[4] / ".venv-agents"))
KEY = "a key of ours"

PYTHON = """
import runwayml, time
from runwayml import RunwayML

client = RunwayML(max_retries=0)
amara = {"type": "custom", "avatar_id": "amara"}
avatars = list(client.avatars.list(limit=3))
assert len(avatars) >= 10 and client.avatars.retrieve(avatars[4].id).name == avatars[4].name
assert avatars[0].status == "READY", avatars[0]
amara["avatar_id"] = next(avatar.id for avatar in avatars if avatar.name == "Amara")
made = client.realtime_sessions.create(model="gwm1_avatars", avatar=amara, max_duration=60)
found = client.realtime_sessions.retrieve(made.id)
print(found.status, bool(found.session_key), found.created_at.year > 2000)
client.realtime_sessions.delete(made.id)
print(client.realtime_sessions.retrieve(made.id).status)
for wrong in (
    lambda: client.realtime_sessions.retrieve("00000000-0000-4000-8000-000000000000"),
    lambda: client.realtime_sessions.create(model="gwm2", avatar=amara),
    lambda: client.with_options(api_key="no").realtime_sessions.retrieve(made.id),
):
    try:
        wrong()
    except runwayml.APIStatusError as error:
        print(type(error).__name__, error.body["error"])
"""
NODE = """
const RunwayML = require('@runwayml/sdk').default;
(async () => {
  const client = new RunwayML({ maxRetries: 0 });
  const avatar = { type: 'custom', avatarId: 'amara' };
  const avatars = [];
  for await (const one of client.avatars.list({ limit: 3 })) avatars.push(one);
  avatar.avatarId = avatars.find((one) => one.name === 'Amara').id;
  const made = await client.realtimeSessions.create({ model: 'gwm1_avatars', avatar, maxDuration: 60 });
  const found = await client.realtimeSessions.retrieve(made.id);
  const consumed = await fetch(`${client.baseURL}/v1/realtime_sessions/${made.id}/consume`,
    { method: 'POST', headers: { authorization: `Bearer ${found.sessionKey}` } });
  const room = await consumed.json();
  console.log(found.status, Boolean(room.url && room.token && room.roomName), found.createdAt.endsWith('Z'));
  await client.realtimeSessions.delete(made.id);
  console.log((await client.realtimeSessions.retrieve(made.id)).status);
  for (const wrong of [
    () => client.realtimeSessions.retrieve('00000000-0000-4000-8000-000000000000'),
    () => client.realtimeSessions.create({ model: 'gwm2', avatar }),
    () => new RunwayML({ apiKey: 'no', maxRetries: 0 }).realtimeSessions.retrieve(made.id),
  ]) await wrong().catch((error) => console.log(error.constructor.name, error.error.error));
})();
"""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    assert (AGENTS / "bin/python").exists(), "tests/run installs the SDKs"
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    manager = FakeManager(Settings(ACCESS, api_key=KEY), FakePipelines(), (64, 48), Records("test", FakeStore()))
    server = uvicorn.Server(uvicorn.Config(create_api(manager), host="127.0.0.1", port=port, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join()


@pytest.mark.parametrize("language", ["python", "node"])
def test_create_poll_consume_cancel_and_typed_errors(url: str, language: str) -> None:
    node = shutil.which("node") or "node"
    command = [AGENTS / "bin/python", "-c", PYTHON] if language == "python" else [node, "-e", NODE]
    environment = os.environ | {"RUNWAYML_BASE_URL": url, "RUNWAYML_API_SECRET": KEY, "PYTHONPATH": ""}
    environment["NODE_PATH"] = str(AGENTS / "node/node_modules")
    told = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, cwd="/")
    lines = told.stdout.splitlines()
    assert len(lines) == 5, told.stderr
    assert [word.lower() for word in lines[0].split()] == ["ready", "true", "true"] and lines[1] == "CANCELLED"
    names = [line.split()[0] for line in lines[2:]]
    assert names == ["NotFoundError", "BadRequestError", "AuthenticationError"], lines
    assert "Session not found" in lines[2] and "model" in lines[3] and "API key" in lines[4]
