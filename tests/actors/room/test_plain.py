"""Clients that know no text streams: captions as JSON packets, and a packet that hangs up."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from actors.room.announcer import Announcer
from actors.room.livekit import is_end_of_call
from actors.voice.tasks import Tasks
from tests.actors.room.test_conversation import TalkRoom


class PlainRoom(TalkRoom):
    identity = "worker:1"

    def __init__(self) -> None:
        super().__init__()
        self.packets: list[dict[str, Any]] = []

    async def publish_data(self, data: str, *, topic: str = "", reliable: bool = True) -> None:
        if not topic:
            assert reliable
            self.packets.append(json.loads(data))


@pytest.mark.parametrize("plain", [True, False])
def test_captions_go_out_as_packets_too(plain: bool) -> None:
    room = PlainRoom()

    async def story() -> None:
        tasks = Tasks()
        announcer = Announcer(room, tasks, lambda: (True, ""), dict, plain)
        announcer.caption("reply-1", "Hello", False)
        announcer.caption("reply-1", "Hello there.", True)
        announcer.caption("user-1", "Hi!", True, speaker="ada")
        await asyncio.sleep(0.2)
        await tasks.cancel()

    asyncio.run(story())
    told = [packet["segments"][0] for packet in room.packets if packet["type"] == "transcription"]
    assert [tuple(segment.values()) for segment in told] == (
        [
            ("reply-1", "Hello", False, "worker:1"),
            ("reply-1", "Hello there.", True, "worker:1"),
            ("user-1", "Hi!", True, "ada"),
        ]
        if plain
        else []
    )


@pytest.mark.parametrize(
    ("data", "ends"),
    [
        (b'{"type":"END_CALL"}', True),
        (b'{"type":"END"}', False),
        (b"[]", False),
        (b"\xff", False),
        (b"[" * 900, False),
        (b'{"type":"END_CALL"}' + b" " * 1000, False),
    ],
)
def test_what_hangs_up(data: bytes, ends: bool) -> None:
    assert is_end_of_call(data) is ends
