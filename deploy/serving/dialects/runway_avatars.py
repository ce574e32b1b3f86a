"""Runway's list of avatars: our characters, to be read. They are made by `characters new`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query

from characters.character import LoadedCharacter
from deploy.serving.dialects.form import Names, uuid_of
from deploy.serving.dialects.runway import RunwayRoute
from deploy.serving.gate import ApiError
from deploy.serving.session_manager import SessionManager

PATH = "/v1/avatars"


def create_router(manager: SessionManager, tenant: Any) -> APIRouter:
    """The routes; see `runway.create_router`."""
    router = APIRouter(route_class=RunwayRoute, tags=["runway"])
    names = Names("", manager.characters)

    @router.get(PATH)
    async def avatars(
        limit: Annotated[int, Query(ge=1, le=100)] = 50, cursor: str = "", holder: str = tenant
    ) -> dict[str, Any]:
        """A page of our characters; `nextCursor` asks for the next."""
        slugs = list(manager.characters)
        if cursor and cursor not in slugs:
            raise ApiError(400, "invalid_request", "cursor: not one of ours")
        first = slugs.index(cursor) if cursor else 0
        found: dict[str, Any] = {"data": [view(manager.characters[s]) for s in slugs[first : first + limit]]}
        return found | ({"nextCursor": slugs[first + limit]} if first + limit < len(slugs) else {})

    @router.get(PATH + "/{avatar_id}")
    async def avatar(avatar_id: str, holder: str = tenant) -> dict[str, Any]:
        """One of our characters, by its UUID or its slug."""
        return view(manager.characters[names.slug(avatar_id)])

    return router


def view(loaded: LoadedCharacter) -> dict[str, Any]:
    """A character as Runway describes an avatar."""
    character = loaded.character
    made = datetime.fromtimestamp(loaded.portrait.stat().st_mtime, UTC).isoformat(timespec="milliseconds")
    picture = f"/v1/characters/{loaded.slug}/portrait"
    return {
        "id": uuid_of(loaded.slug),
        "name": character.name,
        "personality": str(character.persona),
        "startScript": character.greeting,
        "voice": {"type": "custom", "id": loaded.slug, "name": character.name, "description": ""},
        "referenceImageUri": picture,
        "processedImageUri": picture,
        "documentIds": [],
        "createdAt": made.replace("+00:00", "Z"),
        "updatedAt": made.replace("+00:00", "Z"),
        "status": "READY",
    }
