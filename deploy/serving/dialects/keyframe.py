"""Keyframe's request for an avatar, as livekit-plugins-keyframe 1.8 sends it to KEYFRAME_API_URL.

The model's name in the answer says that sound is to come without Keyframe's own framing, and that there are no timed
emotions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter
from pydantic import Field, model_validator

from deploy.serving.dialects.form import Closed, Names, Route, order
from deploy.serving.dialects.order import Order
from deploy.serving.session_manager import SessionManager

PATH = "/v1/sessions/plugins/livekit"
NAME = "keyframe"


class KeyframeSession(Closed):
    """A request for an avatar."""

    room_name: str = Field(min_length=1, max_length=256)
    livekit_url: str = Field(min_length=1, max_length=2048)
    livekit_token: str = Field(min_length=1, max_length=4096)
    source_participant_identity: str = Field("", max_length=256)
    persona_id: str = Field("", max_length=128)
    persona_slug: str = Field("", max_length=128)

    @model_validator(mode="after")
    def _one_persona(self) -> KeyframeSession:
        if bool(self.persona_id) == bool(self.persona_slug):
            raise ValueError("either persona_id or persona_slug must be given")
        return self


def create_router(manager: SessionManager, tenant: Any, client: Any, most: Callable[[str, str], int]) -> APIRouter:
    """The route; see `runway.create_router`."""
    router, names = APIRouter(route_class=Route, tags=[NAME]), Names(manager.settings.avatar_names, manager.characters)

    @router.post(PATH)
    async def start(wanted: KeyframeSession, holder: str = tenant, who: str = client) -> dict[str, str]:
        """Send an avatar into an agent's room."""
        room = (wanted.livekit_url, wanted.livekit_token, wanted.room_name, wanted.source_participant_identity)
        asked = Order(names.slug(wanted.persona_id or wanted.persona_slug), NAME)
        session = await order(manager, asked, room=room, tenant=holder, client=who, most=most(who, holder))
        identity = session.external.identity if session.external is not None else ""
        return {"reservation_id": session.id, "avatar_participant_identity": identity, "model_id": "characters"}

    return router
