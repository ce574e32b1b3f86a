"""An agent that has an avatar, as far as the avatar can tell: LiveKit Agents' protocol by hand, to bend it."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import numpy as np
from livekit import api, rtc

from deploy.serving.settings import LivekitAccess

AGENT, AVATAR = "agent-1", "runway-avatar-agent"


def token(access: LivekitAccess, room: str, identity: str, **grants: Any) -> str:
    """Of a participant of kind agent; an avatar's says for whom it speaks."""
    made = api.AccessToken(access.key, access.secret).with_identity(identity).with_kind("agent")
    if identity == AVATAR:
        made = made.with_attributes({"lk.publish_on_behalf": AGENT})
    return made.with_grants(api.VideoGrants(room_join=True, room=room, **grants)).to_jwt()


class AgentDouble:
    """Attributes:
    started: when the avatar said that a segment had begun.
    finished: when it said that one was over, and what it said.
    """

    def __init__(self, tells_start: bool = True) -> None:
        self.room = rtc.Room()
        self.started: list[float] = []
        self.finished: list[tuple[float, dict[str, Any]]] = []
        self._tells_start = tells_start

    async def join(self, access: LivekitAccess, room: str) -> None:
        """Connect, and wait for the avatar's video as the plugin does."""
        await self.room.connect(access.url, token(access, room, AGENT), rtc.RoomOptions(auto_subscribe=False))

        def finished(call: rtc.RpcInvocationData) -> str:
            assert call.caller_identity == AVATAR
            self.finished.append((time.monotonic(), json.loads(call.payload)))
            return "ok"

        def started(call: rtc.RpcInvocationData) -> str:
            self.started.append(time.monotonic())
            return "ok"

        self.room.local_participant.register_rpc_method("lk.playback_finished", finished)
        if self._tells_start:
            self.room.local_participant.register_rpc_method("lk.playback_started", started)

    async def ready(self) -> None:
        """The avatar has video."""
        async with asyncio.timeout(20):
            while not any(
                p.identity == AVATAR and any(t.kind == rtc.TrackKind.KIND_VIDEO for t in p.track_publications.values())
                for p in self.room.remote_participants.values()
            ):
                await asyncio.sleep(0.02)

    async def begin(self, rate: int = 16_000, channels: int = 1, **attributes: str) -> rtc.ByteStreamWriter:
        """A stream."""
        return await self.room.local_participant.stream_bytes(
            name="AUDIO",
            topic="lk.audio_stream",
            destination_identities=[AVATAR],
            attributes={"sample_rate": str(rate), "num_channels": str(channels)} | attributes,
        )

    async def say(self, pcm: np.ndarray, rate: int = 16_000, channels: int = 1, *, trailer: bool = True) -> Any:
        """A segment: float32 [n] mono at `rate`. Returns its stream."""
        stream = await self.begin(rate, channels)
        data = np.repeat((np.clip(pcm, -1, 1) * 32767).astype("<i2"), channels).tobytes()
        await stream.write(data)
        if trailer:
            await stream.aclose()
        return stream

    async def clear(self) -> str:
        """Interrupt."""
        return await self.room.local_participant.perform_rpc(
            destination_identity=AVATAR, method="lk.clear_buffer", payload=""
        )

    async def done(self, count: int, timeout: float = 20.0) -> dict[str, Any]:
        """Wait until so many segments have been finished. Returns what was said of the last."""
        async with asyncio.timeout(timeout):
            while len(self.finished) < count:
                await asyncio.sleep(0.01)
        return self.finished[count - 1][1]
