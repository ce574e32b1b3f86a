"""LiveKit Inference's avatar sessions, as livekit-agents 1.8 asks for them at LIVEKIT_INFERENCE_URL.

The agent holds the LiveKit keys and signs its request with them; so does the application, if it shares the LiveKit
server, and it mints the avatar's token itself.
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
from typing import Any

from fastapi import APIRouter, Request
from livekit import api
from pydantic import BaseModel, Field
from starlette.datastructures import Headers

from characters.chunk import SAMPLE_RATE
from deploy.serving.dialects.form import Names, Route, order
from deploy.serving.dialects.order import Order
from deploy.serving.dialects.rooms import ON_BEHALF
from deploy.serving.gate import ApiError
from deploy.serving.session_manager import SessionManager

PREFIX = "/avatar/"
NAME = "inference"
_TTL = datetime.timedelta(days=7)


class InferenceSession(BaseModel):
    """A request for an avatar. Fields for other providers are passed over."""

    livekit_url: str = Field(min_length=1, max_length=2048)
    room_name: str = Field(min_length=1, max_length=256)
    avatar_identity: str = Field(min_length=1, max_length=256)
    avatar_name: str = Field("", max_length=256)
    agent_identity: str = Field(min_length=1, max_length=256)
    avatar_id: str = Field(min_length=1, max_length=128)


class Termination(BaseModel):
    """The end of a session, by who began it."""

    provider_session_id: str = Field(max_length=128)
    terminate_token: str = Field(max_length=128)


def create_router(manager: SessionManager) -> APIRouter:
    """The routes: whoever signs with the LiveKit keys of this application may call them."""
    router, names = APIRouter(route_class=Route, tags=[NAME]), Names(manager.settings.avatar_names, manager.characters)
    access = manager.settings.livekit
    signed = checker(manager)

    def proof(session: str) -> str:
        return hmac.new(access.secret.encode(), f"end of {session}".encode(), hashlib.sha256).hexdigest()

    @router.post(PREFIX + "sessions")
    async def start(wanted: InferenceSession, request: Request) -> dict[str, Any]:
        """Send an avatar into a room of our own LiveKit server."""
        signed(request.headers)
        if wanted.livekit_url.rstrip("/") not in (access.url.rstrip("/"), access.browser_url.rstrip("/")):
            raise ApiError(400, "bad_room", "livekit_url: only rooms of this application's own LiveKit server")
        token = (
            api.AccessToken(access.key, access.secret)
            .with_identity(wanted.avatar_identity)
            .with_name(wanted.avatar_name)
            .with_kind("agent")
            .with_attributes({ON_BEHALF: wanted.agent_identity})
            .with_grants(api.VideoGrants(room_join=True, room=wanted.room_name))
            .with_ttl(_TTL)
            .to_jwt()
        )
        asked = Order(names.slug(wanted.avatar_id), NAME)
        room = (access.url, token, wanted.room_name, wanted.agent_identity)
        session = await order(manager, asked, room=room, client="livekit key")
        return {
            "session_id": session.id,
            "provider_session_id": session.id,
            "terminate_token": proof(session.id),
            "sample_rate": SAMPLE_RATE,
        }

    @router.post(PREFIX + "sessions/terminate")
    async def terminate(wanted: Termination, request: Request) -> dict[str, str]:
        """End it."""
        signed(request.headers)
        session = manager.sessions.get(wanted.provider_session_id)
        given = hmac.compare_digest(wanted.terminate_token.encode(), proof(wanted.provider_session_id).encode())
        if session is None or session.dialect != NAME or not given:
            raise ApiError(404, "unknown_session", "there is no such session (any more)")
        manager.act(manager.sessions.cancel(session))
        return {"status": "ok"}

    return router


def checker(manager: SessionManager) -> Any:
    """A function that raises ApiError if a request is not signed with the application's LiveKit keys."""
    verifier = api.TokenVerifier(manager.settings.livekit.key, manager.settings.livekit.secret)

    def check(headers: Headers) -> None:
        try:
            verifier.verify(headers.get("authorization", "").removeprefix("Bearer ").strip())
        except Exception:  # the library raises whatever its parts do
            line = "a token signed with this application's LiveKit keys is needed"
            raise ApiError(401, "unauthorised", line) from None

    return check
