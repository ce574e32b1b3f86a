"""What the dialects have in common: the form of their errors, and what their clients call our characters."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict
from starlette.exceptions import HTTPException

from deploy.serving.dialects.order import Order, place
from deploy.serving.dialects.rooms import RoomRefused, inspect
from deploy.serving.gate import ApiError
from deploy.serving.session_manager import LivekitGone, LivekitRefused, SessionManager
from deploy.serving.sessions import NotAdmitted, RoomTaken, Session


class Closed(BaseModel):
    """A request in which nothing unknown may stand."""

    model_config = ConfigDict(extra="forbid")


def error(problem: ApiError) -> JSONResponse:
    """An error as a text."""
    return JSONResponse({"error": str(problem)}, problem.status, problem.headers)


class Route(APIRoute):
    """Answers errors as `error` does, and 400 for a body that does not fit."""

    error: Callable[[ApiError], JSONResponse] = staticmethod(error)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """See FastAPI."""
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
                if request.method == "POST" and self.body_field is not None and kind != "application/json":
                    raise ApiError(400, "invalid_request", "Incorrect content type: it must be application/json")
                return await handle(request)
            except RequestValidationError as invalid:
                return self.error(ApiError(400, "invalid_request", _what_is_wrong(invalid)))
            except ApiError as problem:
                return self.error(problem)
            except HTTPException as found:
                return self.error(ApiError(found.status_code, "http", str(found.detail)))

        return answer


def _what_is_wrong(invalid: RequestValidationError) -> str:
    first = invalid.errors()[0]
    where = ".".join(str(part) for part in first["loc"] if part != "body")
    if first["type"] == "extra_forbidden":
        return f'Unrecognized key: "{where}"'
    return f"{where}: {first['msg']}" if where else str(first["msg"])


def uuid_of(slug: str) -> str:
    """The UUID that a character is known by, always the same: version 4 in form, as clients ask for it."""
    return str(uuid.UUID(bytes=hashlib.sha256(f"characters/{slug}".encode()).digest()[:16], version=4))


class Names:
    """What clients call our characters: by their slug, their UUID, or as `Settings.avatar_names` says.

    Args:
        text: the setting.
        slugs: of our characters.
    """

    def __init__(self, text: str, slugs: Iterable[str]) -> None:
        pairs = (part.partition("=") for part in text.split(",") if part.strip())
        self._slugs = list(slugs)
        self._known = {name.strip(): slug.strip() for name, _, slug in pairs}
        self._known |= {uuid_of(slug): slug for slug in self._slugs} | {slug: slug for slug in self._slugs}

    def slug(self, name: str) -> str:
        """The character of this name.

        Raises:
            ApiError: 404.
        """
        found = self._known.get(name) or self._known.get("*", "")
        if found not in self._slugs:
            line = "Avatar not found: name one of GET /v1/characters, or say in the setting avatar_names who it is here"
            raise ApiError(404, "unknown_character", line)
        return found


async def order(
    manager: SessionManager,
    wanted: Order,
    *,
    room: tuple[str, str, str, str] | None = None,
    tenant: str = "",
    client: str = "",
    most: int = 0,
) -> Session:
    """See `place`.

    Args:
        manager, wanted, tenant, client, most: see there.
        room: URL, token, name and agent of the room in which to be an avatar (see `inspect`).

    Raises:
        ApiError: why there is no session.
    """
    try:
        external = await inspect(room[0], room[1], manager.settings, room[2], room[3]) if room else None
        made = Order(wanted.character, wanted.dialect, external, wanted.limit, wanted.overrides)
        return await place(manager, made, tenant=tenant, client=client, most=most)
    except RoomRefused as refused:
        raise ApiError(400, "bad_room", f"livekit: {refused}") from None
    except NotAdmitted as full:
        again = full.refused.retry_after
        headers = {} if again is None else {"Retry-After": str(again)}
        raise ApiError(429, full.refused.code, full.refused.message, **headers) from None
    except RoomTaken:
        raise ApiError(409, "room_taken", "this participant of the room is another session's") from None
    except LivekitRefused as refusal:
        raise ApiError(502, "livekit_refused", str(refusal)) from None
    except LivekitGone as gone:
        raise ApiError(503, "livekit_unreachable", str(gone), **{"Retry-After": "5"}) from None
