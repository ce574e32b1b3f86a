"""Runway's API with pipelines that are not there, and a LiveKit server that only says whom it would let in."""

from __future__ import annotations

import asyncio
import http.server
import threading
import time
import uuid
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from deploy.serving.dialects.form import uuid_of
from deploy.serving.dialects.rooms import RoomRefused, allowed
from deploy.serving.settings import LivekitAccess, Settings
from tests.deploy.agent_double import AGENT, AVATAR, token
from tests.deploy.serving.test_api import Open, claims, eventually, open_api, post_event
from tests.deploy.serving.test_webhook import ACCESS

__all__ = ["open_api"]
PATH = "/v1/realtime_sessions"
AMARA = {"model": "gwm1_avatars", "avatar": {"type": "custom", "avatarId": uuid_of("amara")}}
TOKEN = token(ACCESS, "lobby", AVATAR)


class Validator(http.server.BaseHTTPRequestHandler):
    """LiveKit's /rtc/validate: knows one token; sends some elsewhere."""

    asked: list[str] = []  # noqa: RUF012

    def do_GET(self) -> None:
        self.asked.append(self.path)
        known = self.headers["authorization"] == f"Bearer {TOKEN}"
        self.send_response((200 if known else 401) if self.path == "/rtc/validate" else 302)
        self.send_header("location", "/rtc/validate")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def livekit() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Validator) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"ws://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def order(url: str, given: str = TOKEN, **more: Any) -> dict[str, Any]:
    room = {"url": url, "token": given, "roomName": "lobby", "agentIdentity": AGENT}
    return AMARA | {"livekit": room} | more


def test_an_agents_session_runs_at_once_and_only_once(open_api: Open, livekit: str) -> None:
    client, manager, pipelines = open_api(api_key="k")
    client.headers["authorization"] = "Bearer k"
    answer = client.post(PATH, json=order(livekit, maxDuration=60))
    assert (answer.status_code, set(answer.json())) == (200, {"id"})
    key = answer.json()["id"]
    assert uuid.UUID(key).version == 4
    eventually(lambda: pipelines.running == 1)
    room = pipelines.started[0].room
    assert (room.url, room.token, room.agent, room.plain) == (livekit, TOKEN, AGENT, False)
    assert client.post(PATH, json=order(livekit)).json()["id"] == key, "the answer was lost: no second avatar"
    newer = AMARA | {"integration": order(livekit)["livekit"] | {"type": "livekit"}}
    assert client.post(PATH, json=newer).json()["id"] == key
    assert pipelines.running == 1 and len(manager.sessions.all()) == 1
    found = client.get(f"{PATH}/{key}").json()
    assert set(found) == {"id", "createdAt", "status"} and found["status"] == "RUNNING"
    made = datetime.fromisoformat(found["createdAt"])
    assert found["createdAt"].endswith("Z") and abs(made.timestamp() - time.time()) < 60
    assert manager.sessions.all()[0].limit == 60
    assert client.delete(f"{PATH}/{key}").status_code == 204
    assert client.get(f"{PATH}/{key}").json()["status"] == "CANCELLED"
    assert client.delete(f"{PATH}/{key}").status_code == 404
    eventually(lambda: pipelines.running == 0 and not any(s.seated for s in manager.sessions.all()))
    assert client.get("/v1/sessions/" + key.replace("-", "")).status_code == 200, "the same sessions"


def test_a_full_house_refuses_an_agent_at_once(open_api: Open, livekit: str) -> None:
    client, manager, pipelines = open_api()
    client.post("/v1/sessions", json={"character": "bao"})
    full = client.post(PATH, json=order(livekit))
    assert (full.status_code, full.json()["error"]) == (429, "every pipeline is taken")
    assert int(full.headers["retry-after"]) > 0 and not pipelines.started
    assert not [s for s in manager.sessions.all() if s.external and not s.over]
    queued = client.post(PATH, json=AMARA).json()["id"]
    assert client.get(f"{PATH}/{queued}").json()["queued"] is True, "who polls may wait"


def test_a_users_session_from_poll_to_transcript(open_api: Open) -> None:
    client, _, pipelines = open_api(join_s=30, avatar_names="cat-character=miso, *=ruby")
    wanted = {"type": "runway-preset", "presetId": "cat-character"}
    words = {"personality": "You sell boats.", "startScript": "Ahoy!"}
    key = client.post(PATH, json=AMARA | {"avatar": wanted} | words).json()["id"]
    ready = client.get(f"{PATH}/{key}").json()
    assert set(ready) == {"id", "createdAt", "status", "expiresAt", "sessionKey"} and ready["status"] == "READY"
    where, theirs = f"{PATH}/{key}/consume", {"authorization": f"Bearer {ready['sessionKey']}", "origin": "http://x"}
    before = client.options(where, headers={"origin": "http://x", "access-control-request-method": "POST"})
    assert before.status_code == 204 and before.headers["access-control-allow-origin"] == "*"
    assert client.post(where, headers={"authorization": "Bearer no"}).status_code == 401
    joined = client.post(where, headers=theirs, json={})
    assert joined.status_code == 200 and joined.headers["access-control-allow-origin"] == "*"
    assert set(joined.json()) == {"url", "token", "roomName"}
    granted = claims(joined.json()["token"])
    assert granted["video"]["room"] == joined.json()["roomName"]
    assert "screen_share" in granted["video"]["canPublishSources"]
    assert client.post(where, headers=theirs).status_code == 409, "once"
    backend = client.post(f"{PATH}/{key}/connect_backend").json()
    assert claims(backend["token"])["video"]["hidden"] is True
    post_event(client, granted["video"]["room"], granted["sub"])
    eventually(lambda: pipelines.running == 1)
    started = pipelines.started[0]
    assert started.character is not None and started.room.plain
    assert (started.character.persona, started.character.greeting) == ("You sell boats.", "Ahoy!")
    assert claims(started.room.token)["sub"] == "worker:" + key.replace("-", "")
    pipelines.failure = StopAsyncIteration()
    other = client.post(PATH, json=AMARA | {"avatar": {"type": "runway-preset", "presetId": "any"}}).json()["id"]
    assert client.get(f"{PATH}/{other}").status_code == 200


def test_nobody_joins(open_api: Open) -> None:
    client, _, _ = open_api(join_s=0.1)
    key = client.post(PATH, json=AMARA).json()["id"]
    eventually(lambda: client.get(f"{PATH}/{key}").json()["status"] == "FAILED")
    found = client.get(f"{PATH}/{key}").json()
    assert found["failureCode"] == "TALKING_AVATAR.NO_PARTICIPANT"
    assert found["failure"] == "No participants joined the session"


def malformed(url: str) -> Iterator[tuple[Any, int]]:
    """Bodies, and the status that each gets."""
    good = order(url)
    for key in ("model", "avatar"):
        yield {k: v for k, v in good.items() if k != key}, 400
    for value in (None, 7, "", [], {}, "gwm2", True):
        yield good | {"model": value}, 400
        yield good | {"avatar": value}, 400
        yield good | {"livekit": value}, 400 if value is not None else 200
        yield good | {"integration": value}, 400 if value is not None else 200
    for value in (9, 1801, -1, 0, 1.5, "x", None, [], 10**30):
        yield good | {"maxDuration": value}, 400
    for value in ("", "x" * 10_001, 7, []):
        yield AMARA | {"personality": value}, 400
    for value in ("", "x" * 2_001, 7, []):
        yield AMARA | {"startScript": value}, 400
    for avatar in (
        {"type": "custom"},
        {"type": "runway-preset"},
        {"type": "custom", "presetId": "x"},
        {"type": "other", "avatarId": "x"},
        {"type": "custom", "avatarId": "x", "presetId": "x"},
        {"type": "custom", "avatarId": ""},
        {"type": "custom", "avatarId": 7},
        {"type": "custom", "avatarId": "x" * 200},
    ):
        yield good | {"avatar": avatar}, 400
    for name in ("nobody", str(uuid.uuid4()), "../etc/passwd", "\x00", "☃"):
        yield good | {"avatar": {"type": "custom", "avatarId": name}}, 404
        yield good | {"avatar": {"type": "runway-preset", "presetId": name}}, 404
    for key in ("url", "token", "roomName"):
        for value in (None, "", 7, "x" * 3000, []):
            yield good | {"livekit": good["livekit"] | {key: value}}, 400
    for name in (
        "file:///etc/passwd",
        "ws://",
        "127.0.0.1",
        "ws://[::1",
        "ws://a b",
        "ws://u:p@127.0.0.1",
        "gopher://x",
    ):
        yield good | {"livekit": good["livekit"] | {"url": name}}, 400
    for name in ("ws://169.254.169.254", "ws://10.0.0.1:80", "ws://0.0.0.0", "wss://192.168.0.1", "ws://127.0.0.1:9"):
        yield good | {"livekit": good["livekit"] | {"url": name}}, 400
    for name in ("", "a.b.c", "nonsense", TOKEN[:-4] + "AAAA", token(ACCESS, "x", AVATAR)):
        yield good | {"livekit": good["livekit"] | {"token": name}}, 400
    yield good | {"extra": 1}, 400
    yield good | {"livekit": good["livekit"] | {"extra": 1}}, 400
    yield good | {"livekit": good["livekit"], "integration": good["livekit"] | {"type": "livekit"}}, 400
    yield good | {"integration": {"type": "elevenlabs", "signedUrl": "wss://x"}}, 400
    yield good | {"startScript": "Hello"}, 400
    yield good | {"tools": [{"type": "client_event", "name": "x", "description": "x"}]}, 400
    for body in ([], 7, "x", None, True, [good]):
        yield body, 400


def test_a_hundred_malformed_requests_leave_nothing(open_api: Open, livekit: str) -> None:
    client, manager, pipelines = open_api()
    count = 0
    for body, status in malformed(livekit):
        if status == 200:
            continue
        answer = client.post(PATH, json=body)
        assert (answer.status_code, set(answer.json())) == (status, {"error", "docUrl"}), (body, answer.text)
        assert isinstance(answer.json()["error"], str) and "Traceback" not in answer.text
        count += 1
    for kind, data in (("text/plain", "{}"), ("", "{}"), ("application/json", "{"), ("application/json", b"\xff")):
        wrong = client.post(PATH, content=data, headers={"content-type": kind})
        assert wrong.status_code == 400 and isinstance(wrong.json()["error"], str)
    for key in ("x", str(uuid.uuid4()), "-", "\u2603", "a" * 500):
        for method, rest in (("GET", ""), ("DELETE", ""), ("POST", "/connect_backend")):
            gone = client.request(method, f"{PATH}/{key}{rest}")
            assert gone.status_code == 404 and isinstance(gone.json()["error"], str)
        assert client.post(f"{PATH}/{key}/consume").status_code == 401
        count += 4
    assert count > 100 and not pipelines.started and not manager.sessions.all()
    assert client.post(PATH, json=AMARA | {"extra": 1}).json()["error"] == 'Unrecognized key: "extra"'


def test_the_key_comes_before_the_body(open_api: Open) -> None:
    client, _, _ = open_api(api_key="k", max_body=2048)
    answer = client.post(PATH, content=b"x" * 5000)
    assert answer.status_code == 401 and isinstance(answer.json()["error"], str)
    large = client.post(PATH, content=b"x" * 5000, headers={"authorization": "Bearer k"})
    assert large.status_code == 413 and isinstance(large.json()["error"], str)
    assert client.get(f"{PATH}/{uuid.uuid4()}").status_code == 401


async def refused(url: str, rooms: str = "") -> str:
    try:
        return await allowed(url, Settings(LivekitAccess("wss://our.example", "k", "s"), avatar_rooms=rooms))
    except RoomRefused as error:
        return str(error)


@pytest.mark.parametrize(
    ("url", "rooms", "found"),
    [
        ("wss://our.example", "", "wss://our.example"),
        ("https://our.example/", "", "wss://our.example"),
        ("ws://127.0.0.1:7880", "", "ws://127.0.0.1:7880"),
        ("http://localhost:7880/x/", "", "ws://127.0.0.1:7880/x"),
        ("ws://8.8.8.8", "", "may not go"),
        ("ws://8.8.8.8", "any", "ws://8.8.8.8:80"),
        ("ws://10.1.2.3", "any", "may not go"),
        ("ws://169.254.169.254", "any", "may not go"),
        ("ws://10.1.2.3:99", "10.1.*", "ws://10.1.2.3:99"),
        ("ws://0x7f.1", "", "ws://127.0.0.1:80"),
        ("wss://our.example:444", "", "there is no host"),
        ("wss://no.such.host.invalid", "any", "there is no host"),
    ],
)
def test_where_an_avatar_may_go(url: str, rooms: str, found: str) -> None:
    assert found in asyncio.run(refused(url, rooms)).replace("[::1]", "127.0.0.1")


def test_a_server_that_sends_elsewhere_is_no_livekit_server(open_api: Open, livekit: str) -> None:
    client, _, _ = open_api()
    Validator.asked.clear()
    answer = client.post(PATH, json=order(f"{livekit}/elsewhere"))
    assert answer.status_code == 400 and "no LiveKit server" in answer.json()["error"]
    assert Validator.asked == ["/elsewhere/rtc/validate"], "it was followed"
