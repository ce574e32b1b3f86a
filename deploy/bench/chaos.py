"""Kills at random under people who talk, and people who come and go at random moments: what is lost by it, counted.

    python -m deploy.bench.chaos
    python -m deploy.bench.chaos --profile stub --talkers 3 --kills 50 --cycles 200

It starts the application, lets people talk, and ends one process after another, of any kind. After each it waits until
everybody sees a face again. Then people join and leave. In the end all hang up, and what is there is compared with what
was there before: processes, rooms, shared memory, folders, seats. It fails if anything is lost.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx2
from livekit import api

from characters.errors import UserError
from deploy.bench.census import Census, lost
from deploy.bench.running import Running, running
from deploy.load.user import User
from deploy.load.users import ErrorResponse, Server

# What is ended, and how often: a stage twice as often as anything else, and sometimes it only hangs.
VICTIMS = {
    "ray::Stage": 4,
    "ray::ServeReplica:default:Pipeline": 1,
    "ray::ServeReplica:default:Ingress": 1,
    "ray::ServeReplica:default:Livekit": 1,
    "livekit-server": 1,
    "ray::ServeController": 1,
    "ray::ProxyActor": 1,
}
_HANGS = 0.3  # of the blows to stages
_STAND_SECONDS = 0.6  # a picture that stands for so long was interrupted
_FRESH_SECONDS = 1.5  # the newest picture is no older: a busy machine is slow
_BACK_SECONDS = 90.0
_SETTLE_SECONDS = 120.0
_LOOK_SECONDS = 0.1


@dataclass
class Blow:
    """One process was ended, or stopped.

    Attributes:
        kind: of the process.
        hangs: whether it was stopped.
        told: the longest time until a talker whose picture stood was told so; None if no picture stood.
        back: seconds until everybody saw a face again; None if somebody never did.
        entered: seconds until the application let somebody in; None if it never did.
    """

    kind: str
    hangs: bool = False
    told: float | None = None
    back: float | None = None
    entered: float | None = None


@dataclass
class Found:
    """All of it.

    Attributes:
        blows: in order.
        cycles: people who came and went.
        lost: more or fewer processes, folders, shared memory, rooms and seats than before, by kind.
    """

    blows: list[Blow] = field(default_factory=list)
    cycles: int = 0
    lost: dict[str, int] = field(default_factory=dict)


class Talker:
    """Somebody who wants to talk as long as the bench lasts, and asks for another session whenever one ends."""

    def __init__(self, server: Server, character: str) -> None:
        self._server, self._character = server, character
        self.user: User | None = None
        self.session: dict[str, Any] = {}
        self.sessions = 0

    async def talk(self) -> None:
        """Until this is cancelled."""
        try:
            while True:
                try:
                    await self._once()
                except (ErrorResponse, UserError, httpx2.HTTPError, OSError, TimeoutError):
                    await asyncio.sleep(0.5)
                except Exception as error:  # the media client raises what it likes
                    print(f"a talker: {error!r}"[:200], flush=True)
                    await asyncio.sleep(0.5)
        finally:
            await self._leave()

    async def _once(self) -> None:
        body = {"character": self._character}
        self.session = await self._server.request("POST", "/v1/sessions", body)
        while self.session["state"] == "NOT_READY":
            await asyncio.sleep(0.3)
            self.session = await self._server.request("GET", f"/v1/sessions/{self.session['id']}")
        if self.session["state"] != "READY":
            return
        self.user, self.sessions = User(), self.sessions + 1
        try:
            await self.user.join(self.session["server_url"], self.session["participant_token"])
            while self.session["state"] in ("READY", "RUNNING", "NOT_READY"):
                await asyncio.sleep(1.0)
                del self.user.seen.sound[:-200]
                try:
                    self.session = await self._server.request("GET", f"/v1/sessions/{self.session['id']}")
                except UserError:  # nobody answers for now
                    continue
        finally:
            user, self.user = self.user, None
            await user.leave()

    async def _leave(self) -> None:
        if self.session:
            try:
                await self._server.request("DELETE", f"/v1/sessions/{self.session['id']}")
            except (ErrorResponse, UserError):
                print("a talker could not hang up", flush=True)

    def sees(self, since: float) -> bool:
        """Whether pictures came just now, after a moment."""
        frames = self.user.seen.frames if self.user else []
        return bool(frames) and frames[-1][0] > max(since, time.monotonic() - _FRESH_SECONDS)

    def stood(self, since: float) -> bool:
        """Whether the picture has stood since a moment, or there is none."""
        frames = self.user.seen.frames if self.user else []
        times = [since, *(at for at, _ in frames if at > since), time.monotonic()]
        return max(b - a for a, b in itertools.pairwise(times)) > _STAND_SECONDS

    def told(self, since: float) -> float | None:
        """When it was first told since then that its picture stands, or that its call is over."""
        if self.user is None:
            return time.monotonic()
        states = [at for at, state in self.user.seen.states if at > since and state in ("initializing", "gone")]
        return min(states, default=None)


class Chaos:
    """One run.

    Args:
        app: what it is done to.
        seed: of chance.
        victims: kinds of processes to end, and how often in proportion.
    """

    def __init__(self, app: Running, seed: int, victims: Mapping[str, int] = VICTIMS) -> None:
        self._app, self._chance, self._victims = app, random.Random(seed), victims
        self._server = Server(app.address)
        self._media = ""

    async def run(self, talkers: int, kills: int, cycles: int, character: str = "ruby") -> Found:
        """All of it.

        Args:
            talkers: people who talk while processes are ended.
            kills: processes to end.
            cycles: people to come and go.
            character: slug.

        Returns:
            What was found.
        """
        found = Found()
        before, seats = await self._settled(None)
        people = [Talker(self._server, character) for _ in range(talkers)]
        tasks = [asyncio.create_task(talker.talk()) for talker in people]
        try:
            await self._until(lambda: all(talker.sees(0) for talker in people), "nobody sees a face")
            for _ in range(kills):
                await asyncio.sleep(self._chance.uniform(0.5, 3.0))
                blow = await self._strike(people)
                found.blows.append(blow)
                print(f"{len(found.blows):3} {_line(blow)}", flush=True)
        finally:
            self._media = next((talker.session.get("server_url", "") for talker in people if talker.session), "")
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for _ in range(cycles):
            await self._cycle(character)
            found.cycles += 1
        after, now = await self._settled(before)
        found.lost = lost(before, after) | ({"seats": now - seats} if now != seats else {})
        if rooms := await self._rooms():
            found.lost["rooms"] = rooms
        return found

    async def _strike(self, people: list[Talker]) -> Blow:
        census = await asyncio.to_thread(self._app.census)
        kinds = [kind for kind in self._victims if census.processes.get(kind)]
        kind = self._chance.choices(kinds, [self._victims[kind] for kind in kinds])[0]
        victim = self._chance.choice(census.processes[kind])
        blow = Blow(kind, kind == "ray::Stage" and self._chance.random() < _HANGS)
        struck = time.monotonic()
        try:
            os.kill(victim, signal.SIGSTOP if blow.hangs else signal.SIGKILL)
        except ProcessLookupError:
            return blow
        entered = asyncio.create_task(self._entered(struck))
        told: dict[int, float] = {}
        while time.monotonic() - struck < _BACK_SECONDS:
            for number, talker in enumerate(people):
                if number not in told and (at := talker.told(struck)) is not None:
                    told[number] = at - struck
            moment = time.monotonic() - struck
            if moment > 2.5 and all(talker.sees(struck + 1.0) for talker in people):
                blow.back = max(0.0, moment - 2.5) if not any(t.stood(struck) for t in people) else moment
                break
            await asyncio.sleep(_LOOK_SECONDS)
        stood = [number for number, talker in enumerate(people) if talker.stood(struck)]
        if stood:
            blow.told = max((told.get(number, blow.back or _BACK_SECONDS) for number in stood), default=None)
        blow.entered = await entered
        return blow

    async def _entered(self, since: float) -> float | None:
        """Seconds until the application takes somebody into its queue or its rooms."""
        while time.monotonic() - since < _BACK_SECONDS:
            try:
                session = await self._server.request("POST", "/v1/sessions", {"character": "miso"})
                await self._server.request("DELETE", f"/v1/sessions/{session['id']}")
                return time.monotonic() - since
            except (ErrorResponse, UserError, httpx2.HTTPError):
                await asyncio.sleep(0.2)
        return None

    async def _cycle(self, character: str) -> None:
        """Somebody joins, and leaves or hangs up at some moment, or does not join at all."""
        try:
            session = await self._server.request("POST", "/v1/sessions", {"character": character})
            if session["state"] == "READY" and self._chance.random() < 0.8:
                where = (session["server_url"], session["participant_token"])
                seconds = self._chance.choice((0.0, 0.1, 0.5, 1.0, 2.0))
                command = [sys.executable, "-m", "deploy.load.visitors", *where, "0.0", "1"]
                visitor = await asyncio.to_thread(subprocess.Popen, command)
                await asyncio.sleep(0.8 + seconds)  # it takes a moment to start
                visitor.kill()
                await asyncio.to_thread(visitor.wait)
            await asyncio.sleep(self._chance.uniform(0.0, 0.3))
            await self._server.request("DELETE", f"/v1/sessions/{session['id']}")
        except (ErrorResponse, UserError) as error:
            print(f"a cycle: {error}", flush=True)

    async def _settled(self, wanted: Census | None) -> tuple[Census, int]:
        """The census and the seats, when nothing runs and nothing differs from `wanted`, or it has been long enough."""
        give_up, same = time.monotonic() + _SETTLE_SECONDS, 0
        census, before = await asyncio.to_thread(self._app.census), dict[str, int]()
        seats = 0
        while time.monotonic() < give_up:
            try:
                health = await self._server.request("GET", "/healthz")
                idle, seats = health["running"] + health["queued"] == 0, health["pipelines"]
            except (ErrorResponse, UserError):
                idle = False
            census = await asyncio.to_thread(self._app.census)
            same = same + 1 if idle and seats and census.counts() == before else 0
            before = census.counts()
            if same >= 5 and (wanted is None or not lost(wanted, census)):
                break
            await asyncio.sleep(1.0)
        return census, seats

    async def _rooms(self) -> int:
        if not self._media:
            return 0
        async with api.LiveKitAPI("http" + self._media.removeprefix("ws"), self._app.key, self._app.secret) as media:
            give_up = time.monotonic() + _SETTLE_SECONDS
            while time.monotonic() < give_up:
                left = len((await media.room.list_rooms(api.ListRoomsRequest())).rooms)
                if not left:
                    return 0
                await asyncio.sleep(1.0)
        return left

    async def _until(self, condition: Callable[[], bool], what: str) -> None:
        give_up = time.monotonic() + _BACK_SECONDS
        while not condition():
            if time.monotonic() > give_up:
                raise UserError(what)
            await asyncio.sleep(_LOOK_SECONDS)


def show(found: Found) -> bool:
    """Print the figures; whether nothing was lost and everybody came back."""
    by_kind: dict[str, list[Blow]] = {}
    for blow in found.blows:
        by_kind.setdefault(f"{blow.kind}{' hangs' if blow.hangs else ''}", []).append(blow)
    print(f"\n{'longest, in seconds':44} {'n':>3} {'told':>6} {'back':>6} {'next in':>8}")
    for kind, blows in sorted(by_kind.items()):
        told, back, entered = (_longest([getattr(b, name) for b in blows]) for name in ("told", "back", "entered"))
        print(f"{kind:44} {len(blows):3} {told:>6} {back:>6} {entered:>8}")
    whole = all(blow.back is not None and blow.entered is not None for blow in found.blows)
    print(f"{len(found.blows)} blows, {found.cycles} joins and leaves; lost: {found.lost or 'nothing'}")
    return whole and not found.lost


def _longest(values: list[float | None]) -> str:
    there = [value for value in values if value is not None]
    return f"{max(there):.1f}" if there else "-"


def _line(blow: Blow) -> str:
    told, back, entered = (_longest([value]) for value in (blow.told, blow.back, blow.entered))
    return f"{blow.kind}{' hangs' if blow.hangs else ''}: told after {told}, back after {back}, next in after {entered}"


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="stub", help='of conf/deploy, a path, or "stub"')
    parser.add_argument("--talkers", type=int, default=3)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--cycles", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with running(args.profile, args.talkers, print) as app:
        found = asyncio.run(Chaos(app, args.seed).run(args.talkers, args.kills, args.cycles))
    if not show(found):
        raise SystemExit(1)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        raise SystemExit(f"error: {error}") from None
