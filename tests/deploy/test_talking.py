"""The whole application, as a user without a browser meets it: Serve, Ray, livekit-server, the small model."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from characters.character import list_characters
from characters.media.portrait import load_portrait
from deploy.bench.chaos import Chaos
from deploy.bench.running import Running
from deploy.load.user import User
from deploy.serving.settings import LivekitAccess
from deploy.serving.tokens import user_token
from kernels.i420 import rgb_to_i420
from tests.actors.voice.sounds import say
from tests.deploy.conftest import LIVEKIT, Application, processes, wait_for
from tests.deploy.test_conversation import understood

HEIGHT, WIDTH = 272, 176


def thumbnail(i420: np.ndarray) -> np.ndarray:
    """Mean colours of 4 by 4 fields: [3, 4, 4]."""
    planes = i420[:HEIGHT], *i420[HEIGHT:].reshape(2, HEIGHT // 2, WIDTH // 2)
    return np.stack([p.reshape(4, p.shape[0] // 4, 4, p.shape[1] // 4).mean((1, 3)) for p in planes])


def who_is_it(i420: np.ndarray) -> str:
    """The character of the gallery whose portrait is nearest."""
    seen, distances = thumbnail(i420), {}
    for character in list_characters():
        portrait = torch.from_numpy(load_portrait(character.portrait, HEIGHT, WIDTH))
        distances[character.slug] = np.abs(thumbnail(rgb_to_i420(portrait[None])[0].numpy()) - seen).mean()
    return min(distances, key=lambda slug: distances[slug])


def meet(application: Application, slug: str, story: Callable[[User, dict[str, Any]], Awaitable[None]]) -> str:
    """Plays a story with a user in a session, hangs up, and says how the session ended."""
    session = application.open_session(slug)

    async def play() -> None:
        user = User()
        await user.join(session["server_url"], session["participant_token"])
        try:
            await user.until(lambda: user.frames, "no picture", 60)
            await story(user, session)
        finally:
            await user.leave()

    asyncio.run(play())
    return str(application.request("DELETE", f"/v1/sessions/{session['id']}")["state"])


def test_a_spoken_question_gets_a_spoken_answer_from_the_chosen_face(
    application: Application, capsys: pytest.CaptureFixture[str]
) -> None:
    async def story(user: User, session: dict[str, Any]) -> None:
        await user.until(lambda: user.said_by("character"), "no greeting", 60)
        frame = user.seen.frames[-1][1]
        assert frame.shape == (HEIGHT * 3 // 2, WIDTH)
        assert who_is_it(frame) == "kenji"
        await user.until(lambda: time.monotonic() - user.quiet_since() > 0.6, "the greeting does not end")
        frames, began = user.frames, time.monotonic()
        user.say(say("What is your name?", "hibari"))
        end = await user.spoken()
        first = await user.until(lambda: user.loud(end), "no answer", 60)
        await user.until(lambda: user.said_by("character", since=end), "no caption", 60)
        fps = (user.frames - frames) / (time.monotonic() - began)
        assert "Kenji" in user.said_by("character", since=end)[-1]
        assert "name" in understood(user.heard(end))
        trace = await asyncio.to_thread(application.request, "GET", f"/v1/sessions/{session['id']}/trace")
        rows = {e["args"]["name"] for e in trace["traceEvents"] if e["ph"] == "M"}
        assert rows == {"aligner", "dit.0", "decoder", "publisher", "publish_to_render", "turns"}
        assert {"first_pcm", "rendered"} <= {e["name"] for e in trace["traceEvents"]}
        with capsys.disabled():
            print(f"\nturn {first - end:.2f} s at the user, {fps:.1f} fps, {user.seen.figures[-1]}")

    assert meet(application, "kenji", story) == "COMPLETED"


def folders() -> set[Path]:
    """Where sessions' processes meet."""
    own, ups = Path(tempfile.gettempdir()), ".characters-up-*/"  # `characters up` has a folder for them
    return {*own.glob("characters-*"), *own.glob(f"{ups}characters-*")}


def test_a_reconnecting_user_finds_the_same_character_and_leaving_ends_it(application: Application) -> None:
    there, session = folders(), application.open_session("ruby")

    async def visit(seconds: float) -> None:
        user = User()
        await user.join(session["server_url"], session["participant_token"])
        await user.until(lambda: user.frames > 5, "no picture", 60)
        await asyncio.sleep(seconds)
        assert who_is_it(user.seen.frames[-1][1]) == "ruby"
        await user.leave()

    asyncio.run(visit(1.0))
    before = processes("ray::Stage")
    asyncio.run(visit(5.0))  # longer than the grace period
    assert application.state(session) == "RUNNING"
    assert set(processes("ray::Stage")) == set(before), "another pipeline"
    wait_for(lambda: application.state(session) == "COMPLETED", "it does not end when the user has left")
    wait_for(lambda: len(set(processes("ray::Stage")) - set(before)) == 1, "no fresh room for the next user", 60)
    kept = set(processes("ray::Stage")) & set(before)
    assert len(kept) == 3, "the DiT's, the decoder's and the standby's keep their weights, the room's goes"
    assert folders() <= there, "sockets of the session are left"


def visitors(session: dict[str, Any], seconds: float, count: int = 1) -> subprocess.Popen[bytes]:
    """Users of one identity who come one after another and stay so long."""
    where = (session["server_url"], session["participant_token"])
    return subprocess.Popen([sys.executable, "-m", "deploy.load.visitors", *where, str(seconds), str(count)])


def test_who_hangs_up_at_any_moment_leaves_a_pipeline_for_the_next(application: Application) -> None:
    models = set(processes("ray::Stage"))
    for seconds in (0.0, 0.05, 0.2, 0.5, 1.0, 2.0, 3.0):
        session = application.open_session("leila")
        visitor = visitors(session, 10.0)
        wait_for(lambda session=session: application.state(session) == "RUNNING", "nobody came")
        time.sleep(seconds)
        application.request("DELETE", f"/v1/sessions/{session['id']}")
        visitor.kill()
        visitor.wait(10)

    async def story(user: User, session: dict[str, Any]) -> None:
        await user.until(lambda: user.said_by("character"), "no greeting", 60)

    assert meet(application, "leila", story) == "COMPLETED"
    assert len(models & set(processes("ray::Stage"))) >= 3, "the model was loaded again"


def longest_gap(user: User, since: float) -> float:
    """Seconds without a picture, the longest since a moment; a short one is not missed between two looks."""
    times = [since, *(t for t, _ in user.seen.frames if t > since), time.monotonic()]
    return max(b - a for a, b in itertools.pairwise(times))


def stages() -> list[int] | None:
    """Those that work, if the standby is there and has nothing more to load: it is the one that does nothing."""
    found = processes("ray::Stage")
    before = {pid: ticks(pid) for pid in found}
    time.sleep(1.0)
    spent = sorted((ticks(pid) - before[pid], pid) for pid in found)
    return [pid for _, pid in spent[1:]] if len(found) == 4 and spent[0][0] <= 5 else None


def ticks(pid: int) -> int:
    """Hundredths of a second of processor time."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def test_death_is_survived(application: Application, capsys: pytest.CaptureFixture[str]) -> None:
    back: dict[str, str] = {}

    async def story(user: User, session: dict[str, Any]) -> None:
        await user.until(lambda: user.said_by("character"), "no greeting", 60)

        def told() -> int:
            """How often the user was told of a stage's death: in writing, or by the character if it was the room's."""
            notices = [notice for notice in user.seen.notices if "started again" in notice]
            return len(notices) + len([t for t in user.said_by("character") if "gone for a moment" in t])

        async def strike(pid: int, blow: int) -> tuple[float, float]:
            """Seconds until the character's state says so, and until pictures come again."""
            struck = time.monotonic()
            os.kill(pid, blow)
            await user.until(lambda: longest_gap(user, struck) > 0.4, f"{pid} was no loss", 20)
            frames = user.frames
            await user.until(lambda: user.frames > frames + 5, f"not back after {pid}", 90)
            shown = time.monotonic() - struck
            said = [at - struck for at, state in user.seen.states if at > struck and state == "initializing"]
            return min(said, default=shown), shown

        everybody = set(await asyncio.to_thread(wait_for, stages, "no standby", 60))
        for number, blow in enumerate((signal.SIGKILL, signal.SIGSTOP, signal.SIGKILL)):
            found = await asyncio.to_thread(wait_for, stages, "no standby", 60)
            victim, before = next(pid for pid in found if pid in everybody), told()
            said, shown = await strike(victim, blow)
            back[f"stage {number}, {blow.name}"] = f"said after {said:.1f} s, back after {shown:.1f} s"
            assert said <= 2.0 and shown <= (3.0 if blow == signal.SIGKILL else 4.5), back
            await user.until(lambda before=before: told() == before + 1, f"not told of stage {number}", 60)
        _, shown = await strike(processes("livekit-server")[0], signal.SIGKILL)
        back["livekit-server"] = f"back after {shown:.1f} s"
        asked = time.monotonic()
        await user.type("What is your name?")
        await user.until(lambda asked=asked: user.said_by("character", since=asked), "no answer any more", 60)
        assert who_is_it(user.seen.frames[-1][1]) == "walter"
        assert any("gone for a moment" in t for t in user.said_by("character"))

    assert meet(application, "walter", story) == "COMPLETED"
    with capsys.disabled():
        print("\nback:", back)


def test_the_death_of_the_ingress_ends_no_talk_and_loses_no_pipeline(application: Application) -> None:
    def standing(session: dict[str, Any]) -> str:
        with contextlib.suppress(OSError):  # nobody answers for some seconds
            return application.state(session)
        return "no answer"

    async def story(user: User, session: dict[str, Any]) -> None:
        await user.until(lambda: user.said_by("character"), "no greeting", 60)
        os.kill(processes("ray::ServeReplica:default:Ingress")[0], signal.SIGKILL)
        died = time.monotonic()
        await user.until(lambda: time.monotonic() - died > 1.0, "")
        while await asyncio.to_thread(standing, session) != "RUNNING":
            assert time.monotonic() - died < 30, "its session is forgotten"
            await asyncio.sleep(0.3)
        assert longest_gap(user, died) < 1.5
        asked = time.monotonic()
        await user.type("What is your name?")
        await user.until(lambda: user.said_by("character", since=asked), "no answer any more", 60)

    assert meet(application, "bao", story) == "COMPLETED"

    async def picture(user: User, session: dict[str, Any]) -> None:
        assert user.frames

    assert meet(application, "miso", picture) == "COMPLETED", "the next user"


def test_the_death_of_a_pipeline_and_of_what_serves_it_loses_nothing(application: Application) -> None:
    """A short form of `python -m deploy.bench.chaos`."""
    folder = max(Path(tempfile.gettempdir()).glob(".characters-up-*/"), key=lambda path: path.stat().st_mtime)
    key, secret = LIVEKIT.values()
    running = Running(application.address, key, secret, folder, application.mark)
    victims = {"ray::ServeReplica:default:Pipeline": 1, "ray::ServeController": 1, "ray::ProxyActor": 1}
    found = asyncio.run(Chaos(running, 7, victims).run(talkers=1, kills=3, cycles=4))
    for blow in found.blows:
        assert blow.back is not None and blow.entered is not None and blow.entered < 10, blow
    assert {blow.kind for blow in found.blows} == {*victims}
    found.lost.pop("/dev/shm", None)  # which the machine's other programs use too
    assert not found.lost


def test_twenty_joins_and_leaves_leave_nothing(application: Application) -> None:
    session = application.open_session("miso")

    assert visitors(session, 0.0, 20).wait(120) == 0
    wait_for(lambda: application.state(session) == "COMPLETED", "it does not end", 60)
    wait_for(lambda: application.request("GET", "/healthz")["running"] == 0, "something still runs")


def test_wrong_tokens_open_no_room(application: Application) -> None:
    session = application.open_session("amara")
    forged = LivekitAccess(session["server_url"], "key", "not the secret, of more than 32 characters")
    tokens = {
        "forged": user_token(forged, session["room_name"], "eve"),
        "nonsense": "nonsense",
        "damaged": session["participant_token"][:-4] + "AAAA",
    }

    async def enter(token: str) -> None:
        user = User()
        with pytest.raises(Exception, match=r"(?i)unauthorized|invalid|401|token"):
            await user.join(session["server_url"], token, microphone=False)

    for token in tokens.values():
        asyncio.run(enter(token))
    assert application.state(session) == "READY"
    assert application.request("DELETE", f"/v1/sessions/{session['id']}")["state"] == "CANCELLED"


def test_twelve_hundred_sockets_that_send_nothing_close_the_door_to_nobody(application: Application) -> None:
    where = urllib.parse.urlsplit(application.address)
    before = processes("ray::ServeReplica:default:Ingress")
    head = b"POST /v1/sessions HTTP/1.1\r\nHost: [::1]\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n"
    with contextlib.ExitStack() as stack:
        for _ in range(1200):
            client = stack.enter_context(socket.create_connection((where.hostname, where.port), timeout=10))
            client.sendall(head)
        slowest = 0.0
        for _ in range(10):
            began = time.monotonic()
            assert application.request("GET", "/healthz")["livekit"]
            slowest = max(slowest, time.monotonic() - began)
            time.sleep(1.0)
    assert slowest < 5
    assert processes("ray::ServeReplica:default:Ingress") == before, "Serve took the ingress for dead"
