"""Middleware before the API: knows the names that the server is called by, tells browsers what they may not do with an
answer, reads a body only after its key, and limits bodies in bytes, seconds and number."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class ApiError(Exception):
    """An error as the API answers it: HTTP status, a stable code, and a line for people."""

    def __init__(self, status: int, code: str, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status, self.code, self.headers = status, code, headers

    def answer(self) -> JSONResponse:
        """The documented body of every error."""
        body = {"error": {"code": self.code, "message": str(self)}}
        return JSONResponse(body, self.status, self.headers)


class Gate:
    """ASGI middleware. Each open request holds one of Serve's slots, so no request may wait for a stranger's body.

    Args:
        app: the ASGI application behind this one.
        check: by prefix of the path, a function that checks the headers of a request with a body and raises
            `ApiError`. The body of a request to any other path is not read.
        limit: the most bytes of a body.
        larger: another limit, by path.
        headers: of every answer.
        hosts: names in the header Host that are answered, besides addresses and "localhost"; None for every name.
        anywhere: paths that are answered under every name.
        answers: by prefix of the path, another form of errors than our own.
        seconds: the longest time in which a body has to arrive.
        at_once: the most bodies that may be arriving at a time.
    """

    def __init__(
        self,
        app: Any,
        *,
        check: Mapping[str, Callable[[Headers], Any]],
        limit: int,
        larger: Mapping[str, int],
        headers: Mapping[str, str],
        hosts: Collection[str] | None = None,
        anywhere: Collection[str] = (),
        answers: Mapping[str, Callable[[ApiError], JSONResponse]] = {},  # never changed
        seconds: float = 10.0,
        at_once: int = 100,
    ) -> None:
        self._app, self._check, self._limit, self._larger = app, check, limit, larger
        self._headers, self._hosts, self._anywhere = headers, hosts, anywhere
        self._seconds, self._at_once, self._reading = seconds, at_once, 0
        self._answers = answers

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(self._headers)
            await send(message)

        headers = Headers(scope=scope)
        if self._hosts is None or scope["path"] in self._anywhere or _is_known(headers.get("host", ""), self._hosts):
            await self._let_in(scope, headers, receive, answer)
        else:
            line = "this server does not know itself by that name: set an API key, or name it in the setting hosts"
            await ApiError(421, "unknown_host", line).answer()(scope, receive, answer)

    async def _let_in(self, scope: Message, headers: Headers, receive: Receive, send: Send) -> None:
        length = headers.get("content-length", "")
        if "transfer-encoding" not in headers and length in ("", "0"):
            await self._app(scope, receive, send)
            return
        prefix = next((prefix for prefix in self._check if scope["path"].startswith(prefix)), None)
        if prefix is None:
            await self._app(scope, _Again(b"", receive), send)
            return
        try:
            self._check[prefix](headers)
            body = await self._read(receive, self._larger.get(scope["path"], self._limit), length)
        except ApiError as problem:
            forms = (form for prefix, form in self._answers.items() if scope["path"].startswith(prefix))
            form = next(forms, ApiError.answer)
            await form(problem)(scope, receive, send)
            return
        if body is not None:
            await self._app(scope, _Again(body, receive), send)

    async def _read(self, receive: Receive, limit: int, length: str) -> bytes | None:
        """The body; None if the client has gone. Raises ApiError."""
        too_large = ApiError(413, "too_large", f"a request may have {limit} bytes")
        if length.isdecimal() and int(length) > limit:
            raise too_large
        if self._reading >= self._at_once:
            raise ApiError(503, "busy", "too many requests are being sent at once", **{"Retry-After": "1"})
        body, more = bytearray(), True
        self._reading += 1
        try:
            async with asyncio.timeout(self._seconds):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    body += message.get("body", b"")
                    more = message.get("more_body", False)
                    if len(body) > limit:
                        raise too_large
        except TimeoutError:
            line = f"the request's body has not come within {self._seconds:.0f} s"
            raise ApiError(408, "too_slow", line, Connection="close") from None
        finally:
            self._reading -= 1
        return bytes(body)


def _is_known(host: str, names: Collection[str]) -> bool:
    """Whether a header Host holds an address, which no other site can have, or one of the names."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() and not host.endswith("]") else host
    try:
        ipaddress.ip_address(name.strip("[]"))
        return True
    except ValueError:
        return name.lower() in ("localhost", *names)


class _Again:
    """An ASGI `receive` that gives a body that has been read already, then whatever comes."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}
