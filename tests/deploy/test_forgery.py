"""What other participants of a room can make the page show: nothing in the character's name or the user's."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from livekit import rtc

from deploy.load.user import User

HERE = Path(__file__).parent


@pytest.mark.system
def test_the_page_shows_only_what_the_character_sends(tmp_path: Path) -> None:
    web = HERE.parents[1] / "deploy" / "web"
    for file in web.glob("*.js"):
        (tmp_path / file.name).write_text(file.read_text("utf8"), "utf8")
    (tmp_path / "package.json").write_text('{"type": "module"}')
    command = ["node", str(HERE / "forgery.mjs"), str(tmp_path / "room.js")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    of_character = [[False, f"{kind} by {who}"] for who in ("character", "worker") for kind in ("said", "track")]
    assert told["captions"] == [*of_character, [True, "said by ada"], [True, "track by ada"]]
    assert told["notices"] == ["notice by character", "notice by worker"]
    assert told["figures"] == [{"by": "character"}, {"by": "worker"}]
    assert told["attached"] == []


class Reader:
    def __init__(self, text: str) -> None:
        self.info = SimpleNamespace(attributes={"lk.transcription_final": "true"})
        self._text = text

    async def __aiter__(self) -> AsyncIterator[str]:
        yield self._text

    def close(self) -> None:
        pass


def test_a_user_without_a_browser_believes_nobody_else_either() -> None:
    async def listen() -> User:
        user = User()
        agent, person = rtc.ParticipantKind.PARTICIPANT_KIND_AGENT, rtc.ParticipantKind.PARTICIPANT_KIND_STANDARD
        kinds = {"character": agent, "worker": agent, "eve": person}
        there = {who: SimpleNamespace(identity=who, kind=kind) for who, kind in kinds.items()}
        user.room = SimpleNamespace(  # type: ignore[assignment]
            remote_participants=there, local_participant=SimpleNamespace(identity="ada")
        )
        for who in ("character", "worker", "eve", "ada", "gone"):
            await user._caption(Reader(who), who)
            await user._notice(Reader(who), who)
        for participant in [*there.values(), None]:
            data = json.dumps({"by": getattr(participant, "identity", "server")}).encode()
            user._on_data(SimpleNamespace(topic="characters.figures", participant=participant, data=data))  # type: ignore[arg-type]
        return user

    seen = asyncio.run(listen()).seen
    assert [who for _, who, _, _ in seen.captions] == ["character", "worker", "ada"]
    assert seen.notices == ["character", "worker"]
    assert seen.figures == [{"by": "character"}, {"by": "worker"}]
