"""Access to rooms: tokens for users and characters, and the room's configuration."""

from __future__ import annotations

import datetime

from livekit import api

from deploy.serving.settings import LivekitAccess

CHARACTER = "character"  # identity of the character in every room of ours
_CHARACTER_TTL = datetime.timedelta(days=7)  # its process may have to join again at any time
# The user, the character, and one more: a client that reconnects may be in the room twice for a moment.
_PARTICIPANTS = 3


def room_configuration(room: str) -> api.RoomConfiguration:
    """A room's configuration, for creating it and for tokens: who joins first after the server restarts creates it.

    `sync_streams` makes the browser play picture and sound in step.
    """
    return api.RoomConfiguration(
        name=room, empty_timeout=60, departure_timeout=30, max_participants=_PARTICIPANTS, sync_streams=True
    )


def user_token(
    access: LivekitAccess,
    room: str,
    identity: str,
    name: str = "",
    metadata: str = "",
    attributes: dict[str, str] | None = None,
    seconds: float = 120.0,
    screen: bool = False,
) -> str:
    """A user's token for one room, as JWT. The user may speak, show a camera (nobody watches), type, see and hear; and
    share a screen, if `screen` says so.

    It must be used within `seconds`; the connection may last longer.
    """
    grants = api.VideoGrants(
        room_join=True,
        room=room,
        can_publish=True,
        can_subscribe=True,
        can_publish_data=True,
        can_publish_sources=["microphone", "camera", *(["screen_share", "screen_share_audio"] if screen else [])],
    )
    token = api.AccessToken(access.key, access.secret).with_identity(identity).with_name(name).with_grants(grants)
    token = token.with_metadata(metadata).with_attributes(attributes or {})
    return token.with_room_config(room_configuration(room)).with_ttl(datetime.timedelta(seconds=seconds)).to_jwt()


def character_identity(dialect: str, session: str) -> str:
    """The identity of a session's character in its room: Runway's clients know theirs by how it begins."""
    return f"worker:{session}" if dialect == "runway" else CHARACTER


def backend_token(access: LivekitAccess, room: str, identity: str) -> str:
    """The token of a program that nobody sees in a room and that answers the character's calls, as JWT."""
    grants = api.VideoGrants(
        room_join=True, room=room, hidden=True, can_publish=False, can_subscribe=False, can_publish_data=True
    )
    return api.AccessToken(access.key, access.secret).with_identity(identity).with_grants(grants).to_jwt()


def character_token(access: LivekitAccess, room: str, slug: str, name: str, identity: str = CHARACTER) -> str:
    """The character's own token for one room, as JWT. Its attributes tell clients that what it shows is generated."""
    grants = api.VideoGrants(room_join=True, room=room, can_update_own_metadata=True)
    token = api.AccessToken(access.key, access.secret).with_identity(identity).with_name(name).with_grants(grants)
    about = {"characters.slug": slug, "lk.agent.state": "initializing", "characters.ai_generated": "true"}
    token = token.with_kind("agent").with_attributes(about)
    return token.with_room_config(room_configuration(room)).with_ttl(_CHARACTER_TTL).to_jwt()
