"""The HTTP interface with anything: whatever is sent, it answers in its own form, and answers the next one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from deploy.serving.api import create_api
from deploy.serving.records import Records
from deploy.serving.settings import Settings
from tests.deploy.serving.test_api import FakeManager, FakePipelines
from tests.deploy.serving.test_webhook import ACCESS, event, sign
from tests.deploy.store import FakeStore
from tests.fuzzing import JSON, damaged, fuzz

KEY = "the key"


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    settings = Settings(ACCESS, api_key=KEY, sessions_per_client=0)
    manager = FakeManager(settings, FakePipelines(2), (64, 48), Records("test", FakeStore()))
    with TestClient(create_api(manager), base_url="http://localhost", raise_server_exceptions=False) as client:
        yield client


def operations() -> list[tuple[str, str, list[str], list[str]]]:
    """Method, path, names of its parameters, and names of its body's fields, from the API's own description."""
    manager = FakeManager(Settings(ACCESS), FakePipelines(), (64, 48), Records("test", FakeStore()))
    described = create_api(manager).openapi()
    schemas, found = described["components"]["schemas"], []
    for path, methods in described["paths"].items():
        for method, about in methods.items():
            body = about.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            name = body.get("$ref", "").rsplit("/", 1)[-1]
            fields = list(schemas.get(name, {}).get("properties", {}))
            found.append((method.upper(), path, [p["name"] for p in about.get("parameters", [])], fields))
    return found


OPERATIONS = operations()
VALUES = JSON | st.sampled_from(["amara", "a" * 5000, "\ud800", "../..", "\0", 10**400, float("nan")])


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    method, path, parameters, fields = draw(st.sampled_from(OPERATIONS))
    for name in parameters:
        path = path.replace(f"{{{name}}}", quote(draw(st.text(max_size=30)), safe=""))
    names = st.sampled_from(fields) if fields else st.text(max_size=8)
    body = draw(st.dictionaries(names | st.text(max_size=8), VALUES, max_size=6) | VALUES)
    raw = draw(st.just(json.dumps(body).encode()) | st.binary(max_size=60))
    headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
    odd = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=40)
    known = ["content-type", "host", "x-forwarded-for", "origin", "range", "if-none-match", "accept", "cookie"]
    headers |= draw(st.dictionaries(st.sampled_from(known), odd, max_size=2))
    query = draw(st.dictionaries(st.text(max_size=6), st.text(max_size=12), max_size=2))
    method = draw(st.sampled_from([method, method, method, "PUT", "PATCH", "HEAD", "OPTIONS"]))
    return {"method": method, "url": path, "content": raw, "headers": headers, "params": query}


@fuzz(250)
@given(requests())
def test_anything_as_a_request(client: TestClient, request: dict[str, Any]) -> None:
    answer = client.request(**request)
    assert answer.status_code < 500, (request, answer.text)
    if answer.status_code >= 400 and request["method"] != "HEAD" and answer.content:
        assert answer.headers["content-type"].startswith("application/json"), (request, answer.text)
        assert isinstance(answer.json(), dict)
    assert client.get("/healthz").json()["livekit"]


WEBHOOKS = [event("EV_1", 1_700_000_000, kind) for kind in ("participant_joined", "participant_left", "room_finished")]


BODIES = st.sampled_from(WEBHOOKS).flatmap(damaged) | JSON.map(lambda found: json.dumps(found).encode())


@fuzz(120)
@given(BODIES, st.booleans() | st.text(max_size=60))
def test_anything_as_a_webhook(client: TestClient, body: bytes, signature: bool | str) -> None:
    """Signed as by the server, unsigned, and with something else for a signature."""
    found = sign(body) if signature is True else quote(signature) if isinstance(signature, str) else ""
    answer = client.post("/livekit/webhook", content=body, headers={"authorization": found})
    assert answer.status_code in ((200, 204, 400, 401, 409, 422) if signature is True else (401,)), answer.text


KEYS = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=60) | st.sampled_from([KEY[:-1], "", "*"])
HEADERS = st.sampled_from(["authorization", "x-api-key", "cookie"])
SCHEMES = st.sampled_from(["", "Bearer ", "bearer ", "Basic "])


@fuzz(100)
@given(KEYS, HEADERS, SCHEMES)
def test_anything_as_a_key_opens_nothing(client: TestClient, text: str, header: str, scheme: str) -> None:
    if text.strip() == KEY:
        return
    answer = client.post("/v1/sessions", json={"character": "amara"}, headers={header: scheme + text})
    assert answer.status_code == 401, (header, scheme, text)


def test_it_still_works_after_all_that(client: TestClient) -> None:
    answer = client.post("/v1/sessions", json={"character": "amara"}, headers={"authorization": f"Bearer {KEY}"})
    assert answer.status_code in (201, 429)
