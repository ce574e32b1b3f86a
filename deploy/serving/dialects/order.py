"""What every dialect asks for in its own words: a character, for a user of ours or as the avatar of an agent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from deploy.planning.admission import Refused
from deploy.serving.dialects.rooms import External
from deploy.serving.session_manager import SessionManager
from deploy.serving.sessions import NotAdmitted, Session, State

_AGAIN_SECONDS = 5
BUSY = "every pipeline is taken"


@dataclass(frozen=True, slots=True)
class Order:
    """Attributes:
    character: slug.
    dialect: whose API it came by.
    external: the agent's room; None for a room and a conversation of ours.
    limit: seconds that the session may last; 0 for the application's own limit.
    overrides: fields of `character.yaml` that differ in this session.
    """

    character: str
    dialect: str
    external: External | None = None
    limit: float = 0.0
    overrides: Mapping[str, Any] = field(default_factory=dict)


async def place(manager: SessionManager, order: Order, *, tenant: str = "", client: str = "", most: int = 0) -> Session:
    """A session for an order. The avatar of an agent begins at once: an agent that waits for one that may come is worse
    off than one that is refused. It is queued only for a pipeline that is getting ready for its next session. The same
    place in the same room is the same session.

    Args:
        tenant, client, most: see `Sessions.create`.

    Raises:
        NotAdmitted, LivekitRefused, LivekitGone: there is no session.
        RoomTaken: the avatar's place is taken by another character.
    """
    sessions = manager.sessions
    try:
        session = sessions.create(
            order.character,
            tenant=tenant,
            client=client,
            most=most,
            dialect=order.dialect,
            external=order.external,
            limit=order.limit,
            overrides=dict(order.overrides),
        )
        if order.external is not None and session.state is State.NOT_READY and not session.moves:
            leaving = sum(other.over and other.seated for other in sessions.all())
            if sessions.position(session) > leaving:
                manager.act(sessions.cancel(session))
                raise NotAdmitted(Refused("", "queue_full", BUSY, _AGAIN_SECONDS))
    except NotAdmitted as error:
        manager.refused(error.refused.code)
        raise
    if order.external is None:
        try:
            await manager.open_room(session)
        except Exception as error:
            manager.act(sessions.failed(session, "livekit_unreachable", str(error)))
            raise
    await manager.remember()
    manager.act(sessions.begin())
    return session
