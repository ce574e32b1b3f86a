"""A session, as the roles know it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from characters.character import Character

NO_AGENT = "no agent came"  # why the session of an avatar that nobody needed is over


@dataclass(frozen=True)
class RoomAddress:
    """Where a session publishes.

    Attributes:
        kind: "stub" (keeps figures, sends nothing) or "livekit".
        url, token: of the LiveKit server and the character's own access to the room.
        bitrate: of the video, in bits per second.
        agent: identity of the agent whose sound is spoken here (see `actors.room.avatar`); "" = whoever sends first;
            None = nobody's: the session holds a conversation of its own.
        plain: whether captions go out as plain JSON packets, too, for clients that know no text streams.
    """

    kind: str = "stub"
    url: str = ""
    token: str = field(default="", repr=False)
    bitrate: int = 1_500_000
    agent: str | None = None
    plain: bool = False


@dataclass(frozen=True)
class SessionSpec:
    """One user's time with one character.

    Attributes:
        portrait: uint8 [H, W, 3], RGB, of the model's frame size; read-only in the stages.
        seed: of noise and idle motion.
        room: where it publishes.
        character: who speaks; None for pictures and pushed sound without a conversation.
        id: of the session in the serving application; "" outside of it.
        user: identity of its user in the room; "" if it is not known.
        again: whether another pipeline had it before.
    """

    portrait: np.ndarray
    seed: int = 0
    room: RoomAddress = RoomAddress()
    character: Character | None = None
    id: str = ""
    user: str = ""
    again: bool = False
