"""bitHuman's request for an avatar, as livekit-plugins-bithuman 1.8 sends it: BITHUMAN_API_URL is the whole URL.

The plugin sends a form, instead, if its `model` is one of the "expression" family; that is not taken here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from fastapi import APIRouter
from pydantic import Field

from deploy.serving.dialects.form import Closed, Names, Route, order
from deploy.serving.dialects.order import Order
from deploy.serving.gate import ApiError
from deploy.serving.session_manager import SessionManager

PATH = "/v1/bithuman"
NAME = "bithuman"


class BithumanSession(Closed):
    """A request for an avatar."""

    livekit_url: str = Field(min_length=1, max_length=2048)
    livekit_token: str = Field(min_length=1, max_length=4096)
    room_name: str = Field(min_length=1, max_length=256)
    mode: Literal["cpu", "gpu"] = "cpu"
    model: str = Field("", max_length=128)
    agent_id: str = Field("", max_length=128)
    image: str = ""


def create_router(manager: SessionManager, tenant: Any, client: Any, most: Callable[[str, str], int]) -> APIRouter:
    """The route; see `runway.create_router`."""
    router, names = APIRouter(route_class=Route, tags=[NAME]), Names(manager.settings.avatar_names, manager.characters)

    @router.post(PATH)
    async def start(wanted: BithumanSession, holder: str = tenant, who: str = client) -> dict[str, str]:
        """Send an avatar into an agent's room."""
        if wanted.image or not wanted.agent_id:
            raise ApiError(400, "no_character", "agent_id: name a character; one made of a picture is not taken here")
        room = (wanted.livekit_url, wanted.livekit_token, wanted.room_name, "")
        asked = Order(names.slug(wanted.agent_id), NAME)
        session = await order(manager, asked, room=room, tenant=holder, client=who, most=most(who, holder))
        return {"status": "success", "session_id": session.id}

    return router
