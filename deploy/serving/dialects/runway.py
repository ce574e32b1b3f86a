"""Runway's Characters API (version 2024-11-06), as its SDKs, its React component and LiveKit's plugin use it.

A session is one of ours; what differs is how it is told: closed objects by status, errors as {"error": text}, ids that
are UUIDs. Routes, limits and codes as read from runwayml 5.24, @runwayml/sdk 4.20, @runwayml/avatars 0.16 and
livekit-plugins-runway 1.8.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import Field, model_validator
from starlette.datastructures import Headers

from deploy.serving.dialects.form import Closed, Names, Route, order
from deploy.serving.dialects.order import Order
from deploy.serving.gate import ApiError
from deploy.serving.session_manager import SessionManager
from deploy.serving.sessions import Session, State
from deploy.serving.tokens import backend_token, user_token

PATH = "/v1/realtime_sessions"
NAME = "runway"
CONSUME = re.compile(rf"{PATH}/[^/]+/consume/?")
_DOCS = "https://docs.dev.runwayml.com/api"
_CODES = {"queue_timeout": "TALKING_AVATAR.QUEUE_TIMEOUT", "no_participant": "TALKING_AVATAR.NO_PARTICIPANT"}
_NOT_JOINED = ("not_joined", "no_participant")


class Avatar(Closed):
    """Whom to talk to."""

    type: Literal["runway-preset", "custom"]
    presetId: str | None = Field(None, min_length=1, max_length=128)
    avatarId: str | None = Field(None, min_length=1, max_length=128)

    @model_validator(mode="after")
    def _one_id(self) -> Avatar:
        if (self.presetId is None) == (self.type == "runway-preset") or (self.avatarId is None) == (
            self.type == "custom"
        ):
            raise ValueError("a runway-preset has a presetId, and a custom avatar an avatarId")
        return self


class Livekit(Closed):
    """The room of an agent, as its plugin sends it."""

    url: str = Field(min_length=1, max_length=2048)
    token: str = Field(min_length=1, max_length=2048)
    roomName: str = Field(min_length=1, max_length=256)
    agentIdentity: str | None = Field(None, max_length=256)


class Integration(Livekit):
    """The same in the newer spelling."""

    type: Literal["livekit"]


class RealtimeSession(Closed):
    """A request for a session."""

    model: Literal["gwm1_avatars"]
    avatar: Avatar
    maxDuration: int = Field(300, ge=10, le=1800)
    personality: str | None = Field(None, min_length=1, max_length=10_000)
    startScript: str | None = Field(None, min_length=1, max_length=2_000)
    livekit: Livekit | None = None
    integration: Integration | None = None

    @model_validator(mode="after")
    def _one_room(self) -> RealtimeSession:
        if self.livekit is not None and self.integration is not None:
            raise ValueError("livekit and integration are the same thing: send one of them")
        if self.room is not None and (self.personality or self.startScript):
            raise ValueError("the words are the agent's: personality and startScript need a session without a room")
        return self

    @property
    def room(self) -> Livekit | None:
        """The agent's."""
        return self.livekit or self.integration


def error(problem: ApiError) -> JSONResponse:
    """Runway's form of an error."""
    return JSONResponse({"error": str(problem), "docUrl": _DOCS}, problem.status, problem.headers)


class RunwayRoute(Route):
    """Errors as Runway words them."""

    error = staticmethod(error)


class Keys:
    """The key of each session, with which a browser joins it once. It is told while the session is ready.

    Args:
        secret: of the application; a key is made of it and the session's id, so none is kept.
    """

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()

    def of(self, session: str) -> str:
        """The key of a session."""
        proof = hmac.new(self._secret, f"session key of {session}".encode(), hashlib.sha256)
        return f"{session}.{proof.hexdigest()}"

    def opens(self, session: str, authorization: str) -> bool:
        """Whether the header Authorization holds the session's key."""
        return hmac.compare_digest(authorization.removeprefix("Bearer ").strip().encode(), self.of(session).encode())

    def genuine(self, headers: Headers) -> bool:
        """Whether a request has the key of any session."""
        given = headers.get("authorization", "")
        return self.opens(given.removeprefix("Bearer ").strip().partition(".")[0], given)


def create_router(manager: SessionManager, tenant: Any, client: Any, most: Callable[[str, str], int]) -> APIRouter:
    """The routes.

    Args:
        manager: of the sessions.
        tenant, client: FastAPI's dependencies that give the key's holder and who asks.
        most: sessions that a client of a holder may have; 0 = any number.
    """
    router = APIRouter(route_class=RunwayRoute, tags=[NAME])
    settings, keys = manager.settings, Keys(manager.settings.livekit.secret)
    names = Names(settings.avatar_names, manager.characters)

    def find(session_id: str, holder: str) -> Session:
        key = _plain(session_id)
        session = manager.sessions.get(key, holder) if key else None
        if session is None or session.dialect != NAME:
            raise ApiError(404, "unknown_session", "Session not found")
        return session

    @router.post(PATH)
    async def create(wanted: RealtimeSession, holder: str = tenant, who: str = client) -> dict[str, str]:
        """Ask for a session. With a room of an agent it begins by itself; without, poll it until READY."""
        slug = names.slug(wanted.avatar.presetId or str(wanted.avatar.avatarId))
        given = wanted.room
        room = (given.url, given.token, given.roomName, given.agentIdentity or "") if given is not None else None
        overrides = {"persona": wanted.personality, "greeting": wanted.startScript}
        asked = Order(slug, NAME, None, float(wanted.maxDuration), {k: v for k, v in overrides.items() if v})
        session = await order(manager, asked, room=room, tenant=holder, client=who, most=most(who, holder))
        return {"id": _dashed(session.id)}

    @router.get(PATH + "/{session_id}")
    async def get(session_id: str, holder: str = tenant) -> dict[str, Any]:
        """How a session stands."""
        return view(find(session_id, holder))

    @router.delete(PATH + "/{session_id}", status_code=204)
    async def delete(session_id: str, holder: str = tenant) -> Response:
        """Cancel it."""
        session = find(session_id, holder)
        if session.over:
            raise ApiError(404, "over", "Session is over")
        manager.act(manager.sessions.cancel(session, State.CANCELLED))
        return Response(status_code=204)

    @router.post(PATH + "/{session_id}/consume")
    async def consume(session_id: str, request: Request) -> dict[str, str]:
        """Join it: once, from a browser, with the session's key."""
        key = _plain(session_id)
        if not key or not keys.opens(key, request.headers.get("authorization", "")):
            raise ApiError(401, "unauthorised", "a session's own key is needed: it is told while the session is READY")
        session = next((s for s in manager.sessions.all() if s.id == key), None)
        if session is None or session.external is not None:
            raise ApiError(404, "unknown_session", "Session not found")
        if session.state is not State.READY or session.consumed:
            raise ApiError(409, "consumed", "Session is not READY, or has been consumed")
        session.consumed = True
        await manager.remember()
        token = user_token(
            settings.livekit, session.room, session.identity, session.name, seconds=settings.join_s + 60, screen=True
        )
        return {"url": settings.livekit.browser_url, "token": token, "roomName": session.room}

    @router.post(PATH + "/{session_id}/connect_backend")
    async def connect_backend(session_id: str, holder: str = tenant) -> dict[str, str]:
        """A place in the room that nobody sees, for a program that answers the character's calls."""
        session = find(session_id, holder)
        if session.external is not None or session.state not in (State.READY, State.RUNNING):
            raise ApiError(409, "not_ready", "Session has no room to join now")
        token = backend_token(settings.livekit, session.room, f"backend-{session.id}")
        return {"url": settings.livekit.browser_url, "token": token, "roomName": session.room}

    def view(session: Session) -> dict[str, Any]:
        """The object of its status: no field more."""
        state, failure = session.state, session.failure
        code = failure.code if failure else ""
        if code in _NOT_JOINED or (state is State.CANCELLED and code == "left_queue"):
            state = State.FAILED
        found: dict[str, Any] = {"id": _dashed(session.id), "createdAt": moment(session.created), "status": state}
        match state:
            case State.NOT_READY:
                found["queued"] = True
            case State.READY:
                found |= {"expiresAt": moment(session.until or session.created), "sessionKey": keys.of(session.id)}
            case State.COMPLETED:
                found["duration"] = int((session.ended or 0) - (session.started or session.ended or 0))
            case State.FAILED:
                lines = {"not_joined": "No participants joined the session"}
                found["failure"] = lines.get(code) or (failure.message if failure else "the session failed")
                not_joined = code in (*_NOT_JOINED, "left_queue")
                found["failureCode"] = _CODES["no_participant"] if not_joined else _CODES.get(code, "INTERNAL")
        return found

    def moment(at: float) -> str:
        found = datetime.fromtimestamp(manager.since_1970(at), UTC)
        return found.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    return router


def _plain(session_id: str) -> str:
    """The id as we keep it; "" if it is none."""
    try:
        return uuid.UUID(session_id).hex
    except ValueError:
        return ""


def _dashed(key: str) -> str:
    return str(uuid.UUID(key))


class AnyOrigin:
    """ASGI middleware: every site's page may join with a session's key, whatever the setting `cors` says."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """See ASGI."""
        if scope["type"] != "http" or not CONSUME.fullmatch(scope["path"]):
            await self._app(scope, receive, send)
            return
        allow = {"Access-Control-Allow-Origin": "*", "Access-Control-Max-Age": "600"}
        if scope["method"] == "OPTIONS":
            allow |= {"Access-Control-Allow-Methods": "POST", "Access-Control-Allow-Headers": "*, authorization"}
            await Response(status_code=204, headers=allow)(scope, receive, send)
            return

        async def answer(message: Any) -> None:
            if message["type"] == "http.response.start":
                kept = [(k, v) for k, v in message["headers"] if k.lower() != b"access-control-allow-origin"]
                message = message | {"headers": [*kept, (b"access-control-allow-origin", b"*")]}
            await send(message)

        # Of another site's page there is nothing more to know: `CORSMiddleware` is not to judge it.
        headers = [(k, v) for k, v in scope["headers"] if k.lower() != b"origin"]
        await self._app(scope | {"headers": headers}, receive, answer)
