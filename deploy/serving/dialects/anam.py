"""Anam's request for an avatar, as livekit-plugins-anam 1.8 sends it to ANAM_API_URL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, Field

from deploy.serving.dialects.form import Closed, Names, Route, order
from deploy.serving.dialects.order import Order
from deploy.serving.session_manager import SessionManager

PATH = "/v1/engine/session"
NAME = "anam"


class Persona(BaseModel):
    """Whom to show. What else is said of the persona concerns Anam's own models."""

    avatarId: str = Field(min_length=1, max_length=128)
    name: str = Field("", max_length=256)


class Environment(Closed):
    """The agent's room."""

    livekitUrl: str = Field(min_length=1, max_length=2048)
    livekitToken: str = Field(min_length=1, max_length=4096)


class AnamSession(Closed):
    """A request for an avatar. `sessionOptions` is read and changes nothing: a model has one size of frames."""

    personaConfig: Persona
    environment: Environment
    sessionOptions: dict[str, Any] = Field(default_factory=dict)


def create_router(manager: SessionManager, tenant: Any, client: Any, most: Callable[[str, str], int]) -> APIRouter:
    """The route; see `runway.create_router`."""
    router, names = APIRouter(route_class=Route, tags=[NAME]), Names(manager.settings.avatar_names, manager.characters)

    @router.post(PATH)
    async def start(wanted: AnamSession, holder: str = tenant, who: str = client) -> dict[str, str]:
        """Send an avatar into an agent's room."""
        room = (wanted.environment.livekitUrl, wanted.environment.livekitToken, "", "")
        asked = Order(names.slug(wanted.personaConfig.avatarId), NAME)
        session = await order(manager, asked, room=room, tenant=holder, client=who, most=most(who, holder))
        return {"sessionId": session.id}

    return router
