"""An OpenAI-compatible server on loopback that says what a test tells it to."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[["Handler", dict[str, Any]], None]


class Handler(BaseHTTPRequestHandler):
    """Gives each request to the server's next answer."""

    server: FakeServer

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        try:
            request = json.loads(body)
        except ValueError:
            request = {"raw": body}
        self.server.requests.append(request | {"path": self.path, "key": self.headers.get("Authorization")})
        try:
            self.server.answers.pop(0)(self, request)
        except OSError:
            self.server.cut.set()  # the client went away in the middle

    def begin(self, status: int, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.end_headers()

    def log_message(self, *args: Any) -> None: ...


class FakeServer(ThreadingHTTPServer):
    """Attributes: answers to give, in order; requests seen; cut: a client hung up while it was being answered."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: list[Answer] = []
        self.requests: list[dict[str, Any]] = []
        self.cut = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


@contextmanager
def serving() -> Iterator[FakeServer]:
    """A running server."""
    server = FakeServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _events(handler: Handler, deltas: list[dict[str, Any]], pause: float, end: bool = True) -> None:
    handler.begin(200, "text/event-stream")
    for delta in deltas:
        part = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "m"}
        part["choices"] = [{"index": 0, "delta": delta, "finish_reason": None}]
        handler.wfile.write(f"data: {json.dumps(part)}\n\n".encode())
        handler.wfile.flush()
        time.sleep(pause)
    if end:
        handler.wfile.write(b"data: [DONE]\n\n")


def text(*pieces: str, pause: float = 0.0, end: bool = True) -> Answer:
    """Streams pieces of text."""
    return lambda handler, _: _events(handler, [{"content": piece} for piece in pieces], pause, end)


def call(name: str, arguments: str, say: str = "") -> Answer:
    """Streams a tool call, its arguments in pieces, after some text."""
    first = {"index": 0, "id": "c1", "type": "function", "function": {"name": name, "arguments": ""}}
    parts = [{"index": 0, "function": {"arguments": arguments[i : i + 4]}} for i in range(0, len(arguments), 4)]
    deltas = [{"content": say}] * bool(say) + [{"tool_calls": [part]} for part in (first, *parts)]
    return lambda handler, _: _events(handler, deltas, 0.0)


def error(status: int, body: str = '{"error": {"message": "no luck"}}') -> Answer:
    """An HTTP error."""

    def answer(handler: Handler, _: dict[str, Any]) -> None:
        handler.begin(status, "application/json")
        handler.wfile.write(body.encode())

    return answer


def silence(seconds: float) -> Answer:
    """No answer for a while."""
    return lambda handler, _: time.sleep(seconds)


def raw(body: bytes, kind: str) -> Answer:
    """Bytes as they are."""

    def answer(handler: Handler, _: dict[str, Any]) -> None:
        handler.begin(200, kind)
        handler.wfile.write(body)

    return answer
