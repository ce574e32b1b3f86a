"""An agent of LiveKit Agents with an unmodified avatar plugin. Runs in an environment of its own, told what to do by
lines of JSON; answers each with one.

LIVEKIT_URL, LIVEKIT_API_KEY, LIVEKIT_API_SECRET and the plugin's own variables say where: python agent.py ROOM PLUGIN
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
import wave
from collections.abc import AsyncIterator
from typing import Any

from livekit import api, rtc
from livekit.agents import Agent, AgentSession
from livekit.agents.testing import fake_job_context

IDENTITY = "agent-1"
logging.basicConfig(level=logging.INFO, stream=sys.stderr)


def open_avatar(plugin: str) -> Any:
    """As the plugin's documentation shows it."""
    if plugin == "runway":
        from livekit.plugins import runway

        return runway.AvatarSession(preset_id=os.environ.get("PRESET", "amara"), max_duration=600)
    if plugin == "bithuman":
        from livekit.plugins import bithuman

        return bithuman.AvatarSession(avatar_id="amara")
    if plugin == "anam":
        from livekit.plugins import anam

        return anam.AvatarSession(persona_config=anam.PersonaConfig(name="Amara", avatarId="amara"))
    if plugin == "inference":
        from livekit.agents import inference

        return inference.AvatarSession("lemonslice/amara")
    from livekit.plugins import keyframe

    return keyframe.AvatarSession(persona_slug="amara")


async def frames(path: str, repeat: int) -> AsyncIterator[rtc.AudioFrame]:
    """A WAV file as a voice gives it: 20 ms at a time."""
    with wave.open(path) as file:
        rate, data = file.getframerate(), file.readframes(file.getnframes())
    size = rate // 50 * 2
    for _ in range(repeat):
        for start in range(0, len(data), size):
            piece = data[start : start + size]
            yield rtc.AudioFrame(piece, rate, 1, len(piece) // 2)


async def lines() -> AsyncIterator[dict[str, Any]]:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        yield json.loads(line)


def tell(**what: Any) -> None:
    print(json.dumps(what | {"at": time.monotonic()}), flush=True)


async def main(room_name: str, plugin: str) -> None:
    room = rtc.Room()
    grants = api.VideoGrants(room_join=True, room=room_name)
    token = api.AccessToken().with_identity(IDENTITY).with_kind("agent").with_grants(grants).to_jwt()
    await room.connect(os.environ["LIVEKIT_URL"], token)
    with fake_job_context(room=room, agent_identity=IDENTITY) as job:
        job._info.token = token  # the plugin reads its own identity there
        from livekit.agents.utils import http_context

        http_context._new_session_ctx()
        session: AgentSession[None] = AgentSession()
        avatar = open_avatar(plugin)
        said: Any = None
        async for line in lines():
            try:
                match line["do"]:
                    case "start":
                        await avatar.start(session, room=room)
                        await session.start(agent=Agent(instructions="Speak."), room=room)
                        session.output.audio.on(
                            "playback_finished",
                            lambda e: tell(event="finished", position=e.playback_position, interrupted=e.interrupted),
                        )
                        await avatar.wait_for_join()
                        tell(done="start")
                    case "say":
                        said = session.say("Hello.", audio=frames(line["wav"], line.get("repeat", 1)))
                        if line.get("wait", True):
                            await asyncio.wait_for(said.wait_for_playout(), line.get("timeout", 30))
                        tell(done="say", interrupted=said.interrupted)
                    case "interrupt":
                        asked = time.monotonic()
                        await asyncio.wait_for(session.interrupt(), 10)
                        await asyncio.wait_for(said.wait_for_playout(), 10)
                        tell(done="interrupt", asked=asked)
                    case "close":
                        await session.aclose()
                        await avatar.aclose()
                        await room.disconnect()
                        tell(done="close")
                        return
            except Exception as error:
                logging.exception("failed")
                tell(failed=type(error).__name__, message=str(error))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
