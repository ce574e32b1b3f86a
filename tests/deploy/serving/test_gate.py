"""Requests whose bodies do not come, as the ASGI server hands them on."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from fastapi import FastAPI

from deploy.serving.api import create_api
from deploy.serving.gate import ApiError, Gate
from deploy.serving.records import Records
from deploy.serving.settings import Settings
from tests.deploy.serving.test_api import FakeManager, FakePipelines
from tests.deploy.serving.test_webhook import ACCESS
from tests.deploy.store import FakeStore

Answer = tuple[int, dict[str, str], bytes]


async def ask(
    app: Any, method: str, path: str, headers: dict[str, str], receive: Callable[[], Awaitable[Any]]
) -> Answer:
    """What the application answers."""
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": raw,
        "http_version": "1.1",
        "scheme": "http",
        "server": ("test", 80),
        "client": ("x", 1),
    }
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app(scope, receive, send)
    given = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], given, b"".join(message.get("body", b"") for message in sent[1:])


async def never() -> Any:
    """A client that has announced a body and sends nothing."""
    await asyncio.Event().wait()


def api(**settings: Any) -> FastAPI:
    """The API around nothing."""
    return create_api(
        FakeManager(Settings(ACCESS, **settings), FakePipelines(), (64, 48), Records("test", FakeStore()))
    )


@pytest.mark.parametrize("path", ["/v1/sessions", "/token", "/livekit/webhook", "/v1/nowhere"])
def test_who_has_no_key_is_refused_before_anything_is_read(path: str) -> None:
    app, headers = api(api_key="secret"), {"content-length": "100", "content-type": "application/json"}
    began = time.monotonic()
    status, _, body = asyncio.run(ask(app, "POST", path, headers, never))
    assert (status, time.monotonic() - began < 1) == (401, True)
    assert set(json.loads(body)["error"]) == {"code", "message"}


def test_what_nothing_behind_wants_is_not_waited_for() -> None:
    headers = {"content-length": "100"}
    for path, expected in (("/", 405), ("/healthz", 405), ("/static/style.css", 405), ("/nowhere", 404)):
        assert asyncio.run(ask(api(), "POST", path, headers, never))[0] == expected, path
    assert asyncio.run(ask(api(), "GET", "/", headers, never))[0] == 200


def gated(seconds: float, at_once: int) -> Gate:
    """A gate before something that says what it was given."""

    async def echo(scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        await ApiError(200, "echo", message["body"].decode()).answer()(scope, receive, send)

    check = {"/": lambda headers: None}
    return Gate(echo, check=check, limit=10, larger={}, headers={}, seconds=seconds, at_once=at_once)


def test_a_body_has_its_time_its_size_and_its_turn() -> None:
    async def play() -> None:
        app, announced = gated(0.3, 5), {"transfer-encoding": "chunked"}

        def coming(parts: list[bytes], every: float) -> Callable[[], Awaitable[Any]]:
            left = list(parts)

            async def receive() -> Any:
                await asyncio.sleep(every)
                return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

            return receive

        async def status(receive: Callable[[], Awaitable[Any]], headers: dict[str, str] = announced) -> int:
            return (await ask(app, "POST", "/", headers, receive))[0]

        whole = await ask(app, "POST", "/", announced, coming([b"ab", b"cd"], 0.01))
        assert json.loads(whole[2])["error"]["message"] == "abcd"
        assert await status(coming([b"a"] * 9, 0.1)) == 408, "one byte now and then is no body"
        assert await status(coming([b"123456"] * 3, 0.01)) == 413
        assert await status(never, {"content-length": "11"}) == 413, "it says so itself"
        slow = [asyncio.ensure_future(status(never)) for _ in range(5)]
        await asyncio.sleep(0.05)
        assert await status(never) == 503
        assert await asyncio.gather(*slow) == [408] * 5
        assert await status(coming([b"a"], 0.01)) == 200

    asyncio.run(play())
