"""What a session is, as the roles need to know it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from characters.character import Character


@dataclass(frozen=True)
class RoomAddress:
    """Where a session publishes.

    Attributes:
        kind: "stub" (keeps figures, sends nothing) or "livekit".
        url, token: of the LiveKit server and the character's own access to the room.
        bitrate: of the video, bits a second.
    """

    kind: str = "stub"
    url: str = ""
    token: str = field(default="", repr=False)
    bitrate: int = 1_500_000


@dataclass(frozen=True)
class SessionSpec:
    """One user's time with one character.

    Attributes:
        portrait: uint8 [H, W, 3], RGB, of the model's frame size; read-only once it has travelled.
        seed: of noise and idle motion.
        room: where it publishes.
        character: who speaks; None for pictures and pushed sound without a conversation.
        id: of the application's session; "" outside of one.
    """

    portrait: np.ndarray
    seed: int = 0
    room: RoomAddress = RoomAddress()
    character: Character | None = None
    id: str = ""
