"""The HTTP interface with pipelines and a LiveKit server that are not there."""

from __future__ import annotations

import asyncio
import dataclasses
import http.server
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import jwt
import pytest
from starlette.testclient import TestClient

from actors.pipeline.session import SessionSpec
from characters.character import Photograph
from deploy.planning.waiting import AdmissionConfig, Tenant
from deploy.serving.api import create_api
from deploy.serving.records import Records, Run
from deploy.serving.session_manager import LivekitGone, PipelineGone, Replicas, SessionManager
from deploy.serving.sessions import Session
from deploy.serving.settings import Settings
from deploy.serving.tokens import character_token
from tests.deploy.serving.test_webhook import ACCESS, event, sign
from tests.deploy.store import FakeStore


class FakePipelines:
    """Runs sessions that do nothing; `failure` ends the next one to look."""

    def __init__(self, count: int = 1) -> None:
        self.pipelines, self.target, self.capacity = count, 0, 10
        self.lacking: str | None = None
        self.started: list[SessionSpec] = []
        self.running = 0
        self.failure: BaseException | None = None
        self.upgraded = False

    async def stay(self) -> bool:
        return self.upgraded

    async def look(self) -> Replicas:
        ready = frozenset(map(str, range(self.pipelines)))
        return Replicas(
            ready, ready, target=self.target or self.pipelines, capacity=self.capacity, lacking=self.lacking
        )

    async def run(self, session: SessionSpec) -> AsyncIterator[Run]:
        self.started.append(session)
        self.running += 1
        try:
            yield Run("0", "running", "started", "room")
            while True:
                await asyncio.sleep(0.01)
                if self.failure:
                    failure, self.failure = self.failure, None
                    if isinstance(failure, StopAsyncIteration):
                        return
                    raise failure
        finally:
            self.running -= 1

    async def trace(self, room: str) -> dict[str, Any]:
        return {"traceEvents": [], "room": room}


class FakeManager(SessionManager):
    """Without a LiveKit server; `gone` as if it had died."""

    gone = False

    async def open_room(self, session: Session) -> None:
        if self.gone:
            raise LivekitGone("the LiveKit server does not answer")

    async def livekit_answers(self) -> bool:
        return not self.gone

    async def _reconcile(self) -> None:
        pass

    async def _close_room(self, room: str) -> None:
        pass


Open = Callable[..., tuple[TestClient, FakeManager, FakePipelines]]


@pytest.fixture
def open_api() -> Iterator[Open]:
    clients: list[TestClient] = []

    store = FakeStore()

    def make(pipelines: int = 1, **settings: Any) -> tuple[TestClient, FakeManager, FakePipelines]:
        fake = FakePipelines(pipelines)
        manager = FakeManager(Settings(ACCESS, **settings), fake, (64, 48), Records("test", store))
        client = TestClient(create_api(manager), base_url="http://localhost")
        client.__enter__()
        clients.append(client)
        return client, manager, fake

    # As if the process had been killed, which ends nothing and writes nothing down.
    def die(client: TestClient) -> None:
        held = dict(store.held)
        clients.remove(client)
        client.__exit__(None, None, None)
        store.held.clear()
        store.held.update(held)

    make.store, make.die = store, die  # type: ignore[attr-defined]
    yield make
    for client in clients:
        client.__exit__(None, None, None)


def eventually(condition: Callable[[], bool], timeout: float = 5.0) -> None:
    give_up = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.02)


def post_event(client: TestClient, room: str, identity: str, kind: str = "participant_joined", key: str = "") -> Any:
    body = json.loads(event(key or f"EV_{time.monotonic()}", int(time.time()), kind))
    body["room"]["name"], body["participant"]["identity"] = room, identity
    raw = json.dumps(body).encode()
    return client.post("/livekit/webhook", content=raw, headers={"authorization": sign(raw)})


def claims(token: str) -> dict[str, Any]:
    found: dict[str, Any] = jwt.decode(token, ACCESS.secret, algorithms=["HS256"])
    return found


def test_characters_have_all_that_the_page_shows(open_api: Open) -> None:
    client, _, _ = open_api()
    found = client.get("/v1/characters").json()
    assert len(found) >= 10
    amara = next(c for c in found if c["slug"] == "amara")
    shown = {"slug", "name", "description", "greeting", "portrait_url", "portrait", "animated", "models"}
    assert set(amara) == shown
    assert amara["portrait"] == "drawn" and amara["animated"] and amara["models"] == ["small"]
    picture = client.get(amara["portrait_url"])
    assert picture.status_code == 200
    assert picture.headers["content-type"] == "image/png"


def test_the_character_in_a_room_says_that_it_is_generated() -> None:
    attributes = claims(character_token(ACCESS, "characters-1", "ruby", "Ruby"))["attributes"]
    assert attributes["characters.ai_generated"] == "true" and attributes["characters.slug"] == "ruby"


def test_characters_say_which_model_their_portraits_need(open_api: Open) -> None:
    client, manager, _ = open_api()
    manager.portraits = ("photograph",)
    amara = next(c for c in client.get("/v1/characters").json() if c["slug"] == "amara")
    assert not amara["animated"] and amara["models"] == ["small"]
    loaded = manager.characters["amara"]
    photograph = Photograph("photograph.jpg", [10.0, 10.0], 50.0)
    character = dataclasses.replace(loaded.character, photograph=photograph)
    manager.characters["amara"] = dataclasses.replace(loaded, character=character)
    amara = next(c for c in client.get("/v1/characters").json() if c["slug"] == "amara")
    assert amara["portrait"] == "photograph" and amara["animated"] and "leaptalk" in amara["models"]


def test_a_session_from_beginning_to_end(open_api: Open) -> None:
    client, manager, pipelines = open_api()
    answer = client.post("/v1/sessions", json={"character": "bao", "participant_name": "Ada"})
    assert answer.status_code == 201
    session = answer.json()
    assert (session["state"], session["position"], session["error"]) == ("READY", None, None)
    granted = claims(session["participant_token"])
    assert granted["video"]["room"] == session["room_name"]
    assert granted["roomConfig"]["syncStreams"] is True
    assert not granted["video"].get("roomAdmin")
    assert post_event(client, session["room_name"], granted["sub"]).status_code == 200
    eventually(lambda: pipelines.running == 1)
    started = pipelines.started[0]
    assert started.character is not None
    assert started.character.name == "Bao"
    assert started.portrait.shape == (64, 48, 3)
    assert claims(started.room.token)["video"]["room"] == session["room_name"]
    url = f"/v1/sessions/{session['id']}"
    assert client.get(url).json()["state"] == "RUNNING"
    eventually(lambda: client.get(f"{url}/trace").status_code == 200)
    assert client.get("/healthz").json()["running"] == 1
    assert client.delete(url).json()["state"] == "COMPLETED"
    eventually(lambda: pipelines.running == 0)
    eventually(lambda: not any(s.seated for s in manager.sessions.all()))
    gone = client.get(url).json()
    assert (gone["state"], gone["participant_token"]) == ("COMPLETED", None)
    assert client.get(f"{url}/trace").json()["error"]["code"] == "not_running"


def test_the_queue_is_told_and_moves_on(open_api: Open) -> None:
    client, _, _ = open_api(admission=AdmissionConfig(queue=1))
    first = client.post("/v1/sessions", json={"character": "bao"}).json()
    second = client.post("/v1/sessions", json={"character": "amara"}).json()
    assert (second["state"], second["position"]) == ("NOT_READY", 1)
    assert second["estimated_wait_s"] > 0
    assert second["participant_token"] is None
    full = client.post("/v1/sessions", json={"character": "amara"})
    assert (full.status_code, full.json()["error"]["code"]) == (503, "queue_full")
    assert int(full.headers["retry-after"]) == pytest.approx(120, abs=2)
    assert client.delete(f"/v1/sessions/{first['id']}").json()["state"] == "CANCELLED"
    second = client.get(f"/v1/sessions/{second['id']}").json()
    assert (second["state"], second["position"]) == ("READY", None)
    assert second["participant_token"]


def test_a_pipeline_that_fails_is_told(open_api: Open) -> None:
    client, _, pipelines = open_api()
    pipelines.failure = RuntimeError("Traceback ...\nall its processes died")
    session = client.post("/v1/sessions", json={"character": "bao"}).json()
    post_event(client, session["room_name"], claims(session["participant_token"])["sub"])
    eventually(lambda: client.get(f"/v1/sessions/{session['id']}").json()["state"] == "FAILED")
    error = client.get(f"/v1/sessions/{session['id']}").json()["error"]
    assert error == {"code": "pipeline_failed", "message": "all its processes died"}


def test_tokens_as_token_source_wants_them(open_api: Open) -> None:
    client, _, pipelines = open_api()
    request = {
        "room_name": "lobby",
        "participant_identity": "ada",
        "participant_name": "Ada",
        "participant_metadata": "m",
        "participant_attributes": {"character": "kenji"},
        "room_config": {"name": "x"},
    }
    answer = client.post("/token", json=request)
    assert answer.status_code == 201
    assert set(answer.json()) == {"server_url", "participant_token"}
    granted = claims(answer.json()["participant_token"])
    assert (granted["sub"], granted["name"], granted["metadata"]) == ("ada", "Ada", "m")
    room = granted["video"]["room"]
    assert room.startswith("characters-") and "lobby" not in room
    post_event(client, room, "ada")
    eventually(lambda: pipelines.running == 1)
    again = client.post("/token", json=request)
    assert claims(again.json()["participant_token"])["video"]["room"] == room, "a reconnecting client"
    other = client.post("/token", json=request | {"participant_identity": "eve"})
    assert (other.status_code, other.json()["error"]["code"]) == (409, "room_taken")
    agents = {"room_config": {"agents": [{"agent_name": "nobody"}]}}
    assert client.post("/token", json=agents).json()["error"]["code"] == "unknown_character"
    assert client.post("/token", json={}).status_code == 201


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("POST", "/v1/sessions", {"character": "nobody"}, 404, "unknown_character"),
        ("POST", "/v1/sessions", {"character": 7}, 422, "invalid_request"),
        ("POST", "/v1/sessions", {"character": None}, 422, "invalid_request"),
        ("POST", "/v1/sessions", {}, 422, "invalid_request"),
        ("POST", "/v1/sessions", [], 422, "invalid_request"),
        ("POST", "/v1/sessions", {"character": "bao", "extra": 1}, 422, "invalid_request"),
        ("POST", "/v1/sessions", {"character": "bao", "participant_name": "a\x00b"}, 422, "invalid_request"),
        ("POST", "/v1/sessions", {"character": "bao", "participant_name": "a" * 129}, 422, "invalid_request"),
        ("POST", "/v1/sessions", {"character": "bao", "participant_name": "中" * 86}, 422, "invalid_request"),
        ("POST", "/token", {"room_name": "中" * 86}, 422, "invalid_request"),
        ("POST", "/token", {"participant_identity": "😀" * 65}, 422, "invalid_request"),
        ("POST", "/v1/sessions", {"character": "../../etc/passwd"}, 404, "unknown_character"),
        ("POST", "/token", {"room_name": "a\nb"}, 422, "invalid_request"),
        ("POST", "/token", {"participant_identity": "character"}, 422, "invalid_request"),
        ("POST", "/token", {"participant_attributes": {"a": 1}}, 422, "invalid_request"),
        ("GET", "/nowhere", None, 404, "not_found"),
        ("GET", "/static/nothing.js", None, 404, "not_found"),
        ("PUT", "/v1/sessions", {}, 405, "method_not_allowed"),
        ("GET", "/v1/sessions/nothing", None, 404, "unknown_session"),
        ("DELETE", "/v1/sessions/nothing", None, 404, "unknown_session"),
        ("GET", "/v1/characters/nobody/portrait", None, 404, "unknown_character"),
        ("POST", "/livekit/webhook", {"event": "participant_joined"}, 401, "unsigned"),
    ],
)
def test_bad_requests_get_a_clear_answer(
    open_api: Open, method: str, path: str, body: Any, status: int, code: str
) -> None:
    client, manager, _ = open_api()
    answer = client.request(method, path, json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert answer.json()["error"]["message"]
    assert not manager.sessions.all()


def test_bodies_are_bounded(open_api: Open) -> None:
    client, _, _ = open_api()
    answer = client.post("/v1/sessions", json={"character": "x" * 1_000_000})
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")
    assert client.post("/v1/sessions", content=b"{", headers={"content-type": "application/json"}).status_code == 422
    deep = b"[" * 30_000
    for body in (deep, b"\xff\xfe{", b'{"room_name": "\xe9"}'):
        answer = client.post("/token", content=body, headers={"content-type": "application/json"})
        assert answer.status_code in (400, 422) and answer.json()["error"]["message"]


def test_names_may_be_as_long_as_livekit_allows(open_api: Open) -> None:
    client, _, _ = open_api()
    assert client.post("/token", json={"room_name": "é" * 128}).status_code == 201


def test_webhooks_of_strangers_and_replays_do_nothing(open_api: Open) -> None:
    client, _, pipelines = open_api()
    session = client.post("/v1/sessions", json={"character": "bao"}).json()
    identity = claims(session["participant_token"])["sub"]
    assert post_event(client, "another room", identity).status_code == 200
    assert post_event(client, session["room_name"], "eve").status_code == 200
    assert post_event(client, session["room_name"], "character").status_code == 200
    assert pipelines.running == 0
    assert post_event(client, session["room_name"], identity, key="EV_x").status_code == 200
    assert post_event(client, session["room_name"], identity, key="EV_x").status_code == 409
    eventually(lambda: pipelines.running == 1)


def test_an_api_key_is_asked_for_where_it_is_set(open_api: Open) -> None:
    client, _, _ = open_api(api_key="let me in")
    assert client.get("/healthz").status_code == 200
    for path in ("/v1/characters", "/v1/sessions/x"):
        assert client.get(path).json()["error"]["code"] == "unauthorised"
    assert client.post("/token", json={}).status_code == 401
    assert client.get("/v1/characters", headers={"x-api-key": "wrong"}).status_code == 401
    assert client.get("/v1/characters", headers={"x-api-key": "let me in"}).status_code == 200
    assert client.get("/v1/characters", headers={"authorization": "Bearer let me in"}).status_code == 200


def test_every_key_has_its_own_terms(open_api: Open) -> None:
    terms = AdmissionConfig(tenants={"gold": Tenant(10), "trial": Tenant(-1, 1)})
    client, _, _ = open_api(admission=terms, tenant_keys={"gold": "g", "trial": "t"}, api_key="k")
    asked: list[Any] = []
    for key in ("t", "t", "k", "g"):
        asked.append(client.post("/v1/sessions", json={"character": "bao"}, headers={"x-api-key": key}))
    assert [a.status_code for a in asked] == [201, 429, 201, 201]
    assert (asked[1].json()["error"]["code"], int(asked[1].headers["retry-after"])) == ("quota", 120)
    assert asked[3].json()["position"] == 1, "gold goes first"
    assert client.post("/v1/sessions", json={"character": "bao"}).status_code == 401


def test_another_keys_holder_finds_no_session(open_api: Open) -> None:
    client, _, _ = open_api(tenant_keys={"ann": "a", "ben": "b"}, api_key="k")
    ann, ben, shared = ({"x-api-key": key} for key in ("a", "b", "k"))
    session = client.post("/v1/sessions", json={"character": "bao"}, headers=ann).json()
    url = f"/v1/sessions/{session['id']}"
    unknown = client.get("/v1/sessions/nothing", headers=ben).json()
    for stranger in (ben, shared):
        for method, path in (("GET", url), ("DELETE", url), ("GET", f"{url}/trace")):
            answer = client.request(method, path, headers=stranger)
            assert (answer.status_code, answer.json()) == (404, unknown)
    assert client.get(url, headers=ann).json()["state"] == "READY"
    assert client.delete(url, headers=ann).json()["state"] == "CANCELLED"


def test_a_rooms_name_tells_nothing_and_opens_nothing(open_api: Open) -> None:
    client, manager, _ = open_api(4, tenant_keys={"ann": "a", "ben": "b"})
    ann, ben = ({"x-api-key": key} for key in ("a", "b"))
    session = client.post("/v1/sessions", json={"character": "bao"}, headers=ann).json()
    assert session["id"] not in session["room_name"]
    identity = claims(session["participant_token"])["sub"]

    def room(name: str, key: dict[str, str], **more: str) -> str:
        body = {"room_name": name, "participant_identity": identity, "participant_attributes": {"character": "bao"}}
        granted = client.post("/token", json=body | more, headers=key).json()["participant_token"]
        return str(claims(granted)["video"]["room"])

    assert room(session["room_name"], ben) != session["room_name"], "as an owner's room and identity once did"
    assert room("lobby", ann) == room("lobby", ann) != room("lobby", ben)
    assert len({s.room for s in manager.sessions.all()}) == 4


def test_without_keys_a_room_is_found_again_from_its_address_only(open_api: Open) -> None:
    client, _, _ = open_api(2)
    body = {"room_name": "lobby", "participant_identity": "ada"}

    def room(host: str) -> str:
        there = TestClient(client.app, base_url=str(client.base_url), client=(host, 50000))
        return str(claims(there.post("/token", json=body).json()["participant_token"])["video"]["room"])

    assert room("192.0.2.1") == room("192.0.2.1") != room("192.0.2.2")
    assert room("2001:db8::1") == room("2001:db8::2"), "one household"


class SharedLivekit:
    """The rooms of a LiveKit server that another application uses too, as far as `SessionManager` asks for them."""

    def __init__(self, *rooms: str) -> None:
        self.rooms, self.room = set(rooms), self

    async def create_room(self, request: Any) -> None:
        self.rooms.add(request.name)

    async def delete_room(self, request: Any) -> None:
        self.rooms.discard(request.room)

    async def list_rooms(self, request: Any) -> Any:
        return SimpleNamespace(rooms=[SimpleNamespace(name=name) for name in self.rooms if name in request.names])

    async def list_participants(self, request: Any) -> Any:
        return SimpleNamespace(participants=[])

    async def aclose(self) -> None:
        pass


def test_rooms_of_other_applications_are_neither_opened_nor_deleted() -> None:
    server, store = SharedLivekit("boardroom"), FakeStore()
    manager = SessionManager(Settings(ACCESS), FakePipelines(), (64, 48), Records("test", store))
    manager._api = server  # type: ignore[assignment]
    with TestClient(create_api(manager), base_url="http://localhost") as client:
        token = client.post("/token", json={"room_name": "boardroom"}).json()["participant_token"]
        opened = claims(token)["video"]["room"]
        assert server.rooms == {"boardroom", opened} and opened != "boardroom"
        session = manager.sessions.all()[0]
        client.delete(f"/v1/sessions/{session.id}")
        eventually(lambda: opened not in server.rooms)
        session.room = "boardroom"  # as an older version wrote it down
        asyncio.run(manager._close_room(session.room))
    assert server.rooms == {"boardroom"}


def test_one_client_does_not_take_every_place(open_api: Open) -> None:
    terms = AdmissionConfig(tenants={"gold": Tenant()})
    client, manager, _ = open_api(admission=terms, tenant_keys={"ann": "a", "gold": "g"}, api_key="k")

    def ask(key: str, host: str, path: str = "/v1/sessions") -> Any:
        there = TestClient(client.app, base_url=str(client.base_url), client=(host, 50000))
        return there.post(path, json={"character": "bao"} if path != "/token" else {}, headers={"x-api-key": key})

    for i in range(4):
        assert ask("k", "192.0.2.1").status_code == ask("a", f"192.0.2.{i}", "/token").status_code == 201
    for refused in (ask("k", "192.0.2.1"), ask("k", "192.0.2.1", "/token"), ask("a", "192.0.2.9")):
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "quota")
        assert int(refused.headers["retry-after"]) > 0
    assert ask("k", "192.0.2.2").status_code == 201, "the same key elsewhere, as it has no name"
    for _ in range(5):
        assert ask("g", "192.0.2.1").status_code == ask("k", "127.0.0.1").status_code == 201
    first = next(s for s in manager.sessions.all() if s.client == "address 192.0.2.1")
    client.delete(f"/v1/sessions/{first.id}", headers={"x-api-key": "k"})
    assert ask("k", "192.0.2.1").status_code == 201


def test_nobody_talks_on_in_the_room_of_a_session_that_is_over() -> None:
    server = SharedLivekit()
    manager = SessionManager(Settings(ACCESS, join_s=30), FakePipelines(), (64, 48), Records("test", FakeStore()))
    manager._api = server  # type: ignore[assignment]
    with TestClient(create_api(manager), base_url="http://localhost") as client:
        session = client.post("/v1/sessions", json={"character": "bao"}).json()
        granted = claims(session["participant_token"])
        assert granted["exp"] - time.time() <= 30 + 60
        token = claims(client.post("/token", json={}).json()["participant_token"])
        assert token["exp"] - time.time() <= 30 + 60
        client.delete(f"/v1/sessions/{session['id']}")
        room = session["room_name"]
        eventually(lambda: room not in server.rooms)
        server.rooms.add(room)  # its user comes with the old token
        post_event(client, room, granted["sub"])
        eventually(lambda: room not in server.rooms)
        server.rooms.add(room)  # and again, while no webhook reaches us
        eventually(lambda: room not in server.rooms, 10)


def test_the_api_runs_no_scripts_of_other_sites_and_says_who_may_frame_it(open_api: Open) -> None:
    client, _, _ = open_api()
    assert client.get("/docs").status_code == client.get("/redoc").status_code == 404
    assert "/v1/sessions" in client.get("/openapi.json").json()["paths"]
    large = {"content": b"x" * 100_000}
    for answer in (client.get("/"), client.get("/static/app.js"), client.get("/no"), client.post("/token", **large)):
        assert answer.headers["content-security-policy"] == "frame-ancestors 'self'"
        assert answer.headers["x-content-type-options"] == "nosniff"
    client, _, _ = open_api(frame_ancestors="https://good.example")
    assert client.get("/").headers["content-security-policy"] == "frame-ancestors https://good.example"


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_what_another_site_can_post_without_asking_is_refused(open_api: Open, kind: str) -> None:
    client, manager, _ = open_api()
    for path, body in (("/v1/sessions", b'{"character": "bao"}'), ("/token", b"{}")):
        answer = client.post(path, content=body, headers={"content-type": kind} if kind else {})
        assert answer.status_code == 422
    assert not manager.sessions.all()


def test_without_a_key_the_server_answers_to_its_own_names_only(open_api: Open) -> None:
    def status(client: TestClient, host: str, path: str = "/v1/characters") -> int:
        return client.get(path, headers={"host": host}).status_code

    client, _, _ = open_api(hosts="Me.example, other.example")
    for host in ("localhost", "localhost:8000", "127.0.0.1:8000", "[::1]:8000", "192.0.2.7", "me.example:80"):
        assert status(client, host) == 200, host
    for host in ("evil.example", "evil.example:8000", "127.0.0.1.evil.example", "", "localhost.evil.example"):
        assert status(client, host) == status(client, host, "/") == 421, host
    evil = client.post("/v1/sessions", json={"character": "bao"}, headers={"host": "evil.example"})
    assert evil.json()["error"]["code"] == "unknown_host"
    assert client.post("/livekit/webhook", headers={"host": "characters:8000"}).status_code == 401
    client, _, _ = open_api(api_key="k")
    assert client.get("/v1/characters", headers={"host": "any.example", "x-api-key": "k"}).status_code == 200


def test_noise_is_told(open_api: Open) -> None:
    client, manager, _ = open_api()
    assert client.get("/healthz").json()["random_weights"] is False
    manager.random_weights = True
    assert client.get("/healthz").json()["random_weights"] is True


def test_what_the_machines_cannot_hold_is_told(open_api: Open) -> None:
    client, manager, pipelines = open_api()
    assert client.get("/healthz").json()["status"] == "ok"
    pipelines.target, pipelines.capacity = 3, 1
    eventually(lambda: client.get("/healthz").json()["status"] == "degraded")
    told = client.get("/healthz").json()
    assert told["shortfall"] == "3 pipelines are asked for and the cluster has room for 1: 2 cannot start"
    pipelines.lacking = "the decoder is too slow here"
    eventually(lambda: client.get("/healthz").json()["shortfall"] == pipelines.lacking)
    answer = client.post("/v1/sessions", json={"character": "bao"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_plan")
    assert "retry-after" not in answer.headers
    assert not manager.sessions.all()


def test_a_session_whose_pipeline_is_gone_goes_on_in_another(open_api: Open) -> None:
    client, _, pipelines = open_api(2)
    session = client.post("/v1/sessions", json={"character": "bao"}).json()
    post_event(client, session["room_name"], claims(session["participant_token"])["sub"])
    eventually(lambda: pipelines.running == 1)
    pipelines.failure = PipelineGone("its host has gone")
    eventually(lambda: len(pipelines.started) == 2)
    eventually(lambda: client.get(f"/v1/sessions/{session['id']}").json()["state"] == "RUNNING")
    assert pipelines.started[0].room.token != "", "the same room"


def test_cors_is_off_by_default(open_api: Open) -> None:
    origin = {"origin": "https://evil.example"}
    client, _, _ = open_api()
    assert "access-control-allow-origin" not in client.get("/healthz", headers=origin).headers
    client, _, _ = open_api(cors="https://good.example")
    assert "access-control-allow-origin" not in client.get("/healthz", headers=origin).headers
    good = client.get("/healthz", headers={"origin": "https://good.example"})
    assert good.headers["access-control-allow-origin"] == "https://good.example"


def test_a_livekit_server_that_is_gone_is_told(open_api: Open) -> None:
    client, manager, _ = open_api()
    manager.gone = True
    answer = client.post("/v1/sessions", json={"character": "bao"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "livekit_unreachable")
    assert client.get("/healthz").json()["status"] == "degraded"
    assert not any(s.seated for s in manager.sessions.all())


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (400, "livekit_refused", "the LiveKit server refuses: room name is too long"),
        (401, "livekit_refused", "the LiveKit server refuses: room name is too long"),
        (500, "livekit_unreachable", "the LiveKit server does not answer"),
    ],
)
def test_a_livekit_server_that_refuses_is_told_from_one_that_is_gone(status: int, code: str, message: str) -> None:
    class Livekit(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.dumps({"code": "invalid_argument", "msg": "room name is too long"}).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Livekit) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        access = dataclasses.replace(ACCESS, url=f"ws://127.0.0.1:{server.server_port}")
        with TestClient(
            create_api(SessionManager(Settings(access), FakePipelines(), (64, 48), Records("test", FakeStore()))),
            base_url="http://localhost",
        ) as client:
            answer = client.post("/v1/sessions", json={"character": "bao"})
        server.shutdown()
    error = answer.json()["error"]
    assert error["code"] == code and error["message"].startswith(message)
    assert answer.status_code == (503 if code == "livekit_unreachable" else 502)


def test_the_documentation_has_examples(open_api: Open) -> None:
    client, _, _ = open_api()
    schemas = client.get("/openapi.json").json()["components"]["schemas"]
    assert all(schemas[name]["examples"] for name in ("NewSession", "SessionView", "TokenRequest"))


def test_a_call_that_was_cancelled_by_nobody_is_told_and_one_that_just_ends_moves(open_api: Open) -> None:
    client, manager, pipelines = open_api()

    def start() -> dict[str, Any]:
        session: dict[str, Any] = client.post("/v1/sessions", json={"character": "amara"}).json()
        post_event(client, session["room_name"], manager.sessions.get(session["id"]).identity)  # type: ignore[union-attr]
        eventually(lambda: pipelines.running == 1)
        return session

    session = start()
    pipelines.failure = asyncio.CancelledError()  # type: ignore[assignment]
    eventually(lambda: client.get(f"/v1/sessions/{session['id']}").json()["state"] == "FAILED")
    assert client.get(f"/v1/sessions/{session['id']}").json()["error"]["code"] == "pipeline_failed"
    session = start()
    pipelines.failure = StopAsyncIteration()
    eventually(lambda: len(pipelines.started) == 3)
    assert client.get(f"/v1/sessions/{session['id']}").json()["state"] == "RUNNING"


def test_an_ingress_that_comes_after_a_dead_one_knows_its_sessions(open_api: Open) -> None:
    client, manager, pipelines = open_api(2, grace_s=0.3)
    store: FakeStore = open_api.store  # type: ignore[attr-defined]
    records = Records("test", store)

    def ask(key: str, client: TestClient = client) -> dict[str, Any]:
        found: dict[str, Any] = client.get(f"/v1/sessions/{key}").json()
        return found

    made = [
        client.post("/v1/sessions", json={"character": "amara", "participant_name": f"n{i}"}).json() for i in range(4)
    ]
    post_event(client, made[0]["room_name"], manager.sessions.get(made[0]["id"]).identity)  # type: ignore[union-attr]
    eventually(lambda: ask(made[0]["id"])["state"] == "RUNNING")
    records.report(made[0]["id"], Run("0", "running", "started", "room"))  # as the pipeline does
    before = [ask(m["id"]) for m in made]
    assert [b["state"] for b in before] == ["RUNNING", "READY", "NOT_READY", "NOT_READY"]
    open_api.die(client)  # type: ignore[attr-defined]

    client, manager, pipelines = open_api(2, grace_s=0.3)
    after = [ask(m["id"], client) for m in made]
    for b, a in zip(before, after, strict=True):
        assert {**b, "participant_token": 0, "estimated_wait_s": 0} == {
            **a,
            "participant_token": 0,
            "estimated_wait_s": 0,
        }
    assert not pipelines.started, "the call that runs is not made again"
    assert client.get("/healthz").json()["running"] == 1
    assert client.get(f"/v1/sessions/{made[0]['id']}/trace").json()["room"] == "room"
    # Its user leaves: the pipeline learns it from the record, and we from the pipeline.
    post_event(client, made[0]["room_name"], manager.sessions.get(made[0]["id"]).identity, "participant_left")  # type: ignore[union-attr]
    eventually(lambda: records.over(made[0]["id"]))
    records.report(made[0]["id"], None)
    eventually(lambda: ask(made[2]["id"], client)["state"] == "READY")
    assert ask(made[0]["id"], client)["state"] == "COMPLETED"


@pytest.mark.parametrize("run", [None, Run("gone", "running", "started", "room")])
def test_a_session_that_died_with_its_pipeline_and_its_ingress_goes_on_in_another(
    open_api: Open, run: Run | None
) -> None:
    client, manager, _ = open_api()
    session = client.post("/v1/sessions", json={"character": "amara"}).json()
    identity = manager.sessions.get(session["id"]).identity  # type: ignore[union-attr]
    post_event(client, session["room_name"], identity)
    eventually(lambda: client.get(f"/v1/sessions/{session['id']}").json()["state"] == "RUNNING")
    store: FakeStore = open_api.store  # type: ignore[attr-defined]
    open_api.die(client)  # type: ignore[attr-defined]
    if run is not None:
        Records("test", store).report(session["id"], run)
    client, manager, pipelines = open_api()
    eventually(lambda: len(pipelines.started) == 1)
    assert client.get(f"/v1/sessions/{session['id']}").json()["state"] == "RUNNING"


@pytest.mark.parametrize("upgraded", [True, False])
def test_an_ingress_that_is_replaced_leaves_its_sessions_and_one_that_is_stopped_ends_them(
    open_api: Open, upgraded: bool
) -> None:
    client, manager, pipelines = open_api()
    pipelines.upgraded = upgraded
    session = client.post("/v1/sessions", json={"character": "amara"}).json()
    post_event(client, session["room_name"], manager.sessions.get(session["id"]).identity)  # type: ignore[union-attr]
    eventually(lambda: client.get(f"/v1/sessions/{session['id']}").json()["state"] == "RUNNING")
    cancelled = list(manager._calls.values())
    client.portal.call(manager.close)  # type: ignore[union-attr]
    records = Records("test", open_api.store)  # type: ignore[attr-defined]
    assert records.over(session["id"]) is not upgraded
    assert [call.cancelled() for call in cancelled] == [not upgraded]


def test_health_says_that_ray_does_not_answer(open_api: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deploy.serving.session_manager._SILENCE_SECONDS", 1.5)
    client, _, pipelines = open_api()
    assert client.get("/healthz").json()["status"] == "ok"

    async def never() -> Replicas:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(pipelines, "look", never)
    eventually(lambda: client.get("/healthz").json()["status"] == "degraded")
    assert client.get("/healthz").json()["shortfall"].startswith("Ray has not answered for ")


def test_the_room_is_told_at_once_that_a_part_of_the_character_is_replaced(
    open_api: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []

    async def update(request: Any) -> None:
        told.append((request.room, request.identity, dict(request.attributes)))

    client, manager, pipelines = open_api()
    room = SimpleNamespace(update_participant=update)
    monkeypatch.setattr(manager, "_livekit", lambda: SimpleNamespace(room=room))
    session = client.post("/v1/sessions", json={"character": "amara"}).json()
    post_event(client, session["room_name"], manager.sessions.get(session["id"]).identity)  # type: ignore[union-attr]
    eventually(lambda: bool(pipelines.started))

    async def rebuild() -> None:
        found = manager.sessions.all()[0]
        for state in ("rebuilding", "rebuilding", "running"):
            manager._take(found, Run("0", state))
        await asyncio.sleep(0)

    client.portal.call(rebuild)  # type: ignore[union-attr]
    eventually(lambda: bool(told))
    assert told == [(session["room_name"], "character", {"lk.agent.state": "initializing"})]
