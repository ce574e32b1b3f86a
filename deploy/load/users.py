"""Many users at a time, without browsers: who is admitted, and what picture and sound they get.

Each user asks for a session, waits in the queue if necessary, joins the room, and asks one recorded question after the
other until the test ends. All times are taken at the users' end, by the clock of this machine.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx2
import numpy as np

from characters.errors import UserError
from deploy.http import NO_ANSWER, check_address
from deploy.load.talk import QUESTIONS, SPEECH, quiet, speech
from deploy.load.user import NotSeen, User

Outcome = Literal["talked", "queued", "refused", "failed"]

_BETWEEN_ARRIVALS = 0.5
_POLL_SECONDS = 1.0
_FIRST_PICTURE = 60.0  # seconds
_ANSWER = 30.0
_KEPT_SOUND = 500  # blocks of 10 ms
_LAG_EVERY = 0.05


@dataclass
class Visit:
    """What happened to one user. Times are seconds since the test began.

    Attributes:
        number: of the user.
        outcome: "talked"; "queued" if the test ended before the user was admitted; "refused"; "failed".
        reason: the server's code and words, or what went wrong.
        asked: when the user asked for a session.
        position: in the queue at first; 0 if the user was admitted at once.
        seated: when the user was admitted; None if that never happened.
        ended: when the visit was over.
        frames, sounds: when each frame and each block of sound came.
        turns: seconds from the end of a question to the first sound of the answer.
        unanswered: questions without an answer within half a minute.
        goal: frames a second of the model, as the server tells; 0 if it did not.
        late: late chunks, as the server counts them.
    """

    number: int
    outcome: Outcome = "queued"
    reason: str = ""
    asked: float = 0.0
    position: int = 0
    seated: float | None = None
    ended: float = 0.0
    frames: list[float] = field(default_factory=list)
    sounds: list[float] = field(default_factory=list)
    turns: list[float] = field(default_factory=list)
    unanswered: int = 0
    goal: int = 0
    late: int = 0


@dataclass
class LoadTest:
    """All visits of one test.

    Attributes:
        url: of the application.
        seconds: how long the test took.
        health: the application's answer to GET /healthz before the test.
        visits: by number.
        lags: seconds by which this program woke up late, twenty times a second: its own share of what it measured.
    """

    url: str
    seconds: float
    health: dict[str, Any]
    visits: list[Visit]
    lags: list[float]


class ErrorResponse(Exception):
    """The application answered with an error: its code and words, and when to try again if it says so."""


class Server:
    """The application's HTTP interface.

    Args:
        url: http:// or https://.
        key: its API key; none if empty.

    Raises:
        UserError: `url` is not an address.
    """

    def __init__(self, url: str, key: str = "") -> None:
        self.url = check_address(url, "--url")
        headers = {"x-api-key": key} if key else {}
        # A connection a request, as if each user had their own.
        self._client = httpx2.AsyncClient(
            headers=headers, timeout=60, follow_redirects=True, limits=httpx2.Limits(max_keepalive_connections=0)
        )

    async def request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """JSON in and out.

        Raises:
            ErrorResponse: the application answered with an error.
            UserError: nothing answers there, or another program does.
        """
        try:
            return (await self._client.request(method, self.url + path, json=body)).raise_for_status().json()
        except httpx2.HTTPStatusError as error:
            raise ErrorResponse(_words(error.response)) from None
        except NO_ANSWER as error:
            raise UserError(f"no application at {self.url}: {str(error) or type(error).__name__}") from None


def loadtest(url: str, users: int, minutes: float, character: str, say: Callable[[str], None] = print) -> LoadTest:
    """Send `users` users, half a second apart; the test ends `minutes` after the first.

    Args:
        url: of the application; its API key is CHARACTERS_API_KEY in the environment.
        character: slug of the character that they talk to.
        say: prints a line.

    Raises:
        UserError: no application answers at `url`, or it has no such character.
    """
    server = Server(url, os.environ.get("CHARACTERS_API_KEY", ""))
    return asyncio.run(_run(server, users, 60 * minutes, character, say))


async def _run(server: Server, users: int, seconds: float, character: str, say: Callable[[str], None]) -> LoadTest:
    try:
        health = await server.request("GET", "/healthz")
        known = [c["slug"] for c in await server.request("GET", "/v1/characters")]
    except ErrorResponse as error:
        raise UserError(f"{server.url} answers: {error}") from None
    if character not in known:
        raise UserError(f"no character {character!r} there; there are {', '.join(known)}")
    lines = [speech(question) for question in QUESTIONS]
    say(f"{users} user(s), {seconds:.0f} s, {health['pipelines']} pipeline(s) there")
    lags: list[float] = []
    watch = asyncio.create_task(_watch(lags))
    began = time.monotonic()
    visitors = [Visitor(server, Visit(i), lines, began, began + seconds, character, say) for i in range(users)]
    await asyncio.gather(*(visitor.come() for visitor in visitors))
    watch.cancel()
    return LoadTest(server.url, time.monotonic() - began, health, [v.visit for v in visitors], lags)


class Visitor:
    """One user.

    Args:
        server: of the application.
        visit: takes what happens.
        lines: the questions, asked in turn: float32 [n] at 24 kHz each.
        began, until: when the test began and ends, seconds of `time.monotonic`.
        character: slug.
        say: prints a line.
    """

    def __init__(
        self,
        server: Server,
        visit: Visit,
        lines: list[np.ndarray],
        began: float,
        until: float,
        character: str,
        say: Callable[[str], None],
    ) -> None:
        self.visit = visit
        self._server, self._lines, self._began, self._until = server, lines, began, until
        self._character, self._say = character, say
        self._session: dict[str, Any] = {}

    async def come(self) -> None:
        """Make the whole visit. It raises nothing: errors are part of the measurement."""
        visit = self.visit
        await asyncio.sleep(visit.number * _BETWEEN_ARRIVALS)
        visit.asked = self._now()
        left = self._until - time.monotonic()
        try:
            async with asyncio.timeout(max(left, 0)):
                await self._enter()
                visit.seated = self._now()
                await self._talk()
        except TimeoutError:  # the test is over: a user who talks is meant to end so
            if visit.seated is not None and not visit.frames:
                visit.outcome, visit.reason = "failed", "let in, but no picture came before the end"
        except ErrorResponse as error:
            visit.outcome, visit.reason = ("refused" if visit.seated is None else "failed"), str(error)
        except Exception as error:
            visit.outcome, visit.reason = "failed", str(error) or type(error).__name__
        await self._leave()
        visit.ended = self._now()
        self._say(f"user {visit.number}: {visit.outcome}{f' ({visit.reason})' if visit.reason else ''}")

    async def _enter(self) -> None:
        """Ask for a session, and wait for it."""
        body = {"character": self._character, "participant_name": f"user {self.visit.number}"}
        self._session = await self._server.request("POST", "/v1/sessions", body)
        self.visit.position = self._session["position"] or 0
        while self._session["state"] == "NOT_READY":
            await asyncio.sleep(_POLL_SECONDS)
            self._session = await self._server.request("GET", f"/v1/sessions/{self._session['id']}")
        if error := self._session["error"]:
            raise ErrorResponse(f"{error['code']}: {error['message']}")

    async def _talk(self) -> None:
        """Ask until the time is up."""
        visit = self.visit
        user = User(lambda at, _: visit.frames.append(at - self._began))
        try:
            await user.join(self._session["server_url"], self._session["participant_token"])
            await user.until(lambda: user.frames, "no picture", _FIRST_PICTURE)
            visit.outcome = "talked"
            await user.until(lambda: user.said_by("character"), "no greeting", _FIRST_PICTURE)
            for line in itertools.cycle(self._lines):
                await quiet(user)
                self._forget(user, _KEPT_SOUND)
                user.say(line)
                end = await user.spoken()
                try:
                    heard = await user.until(lambda end=end: user.loud(end, SPEECH), "no answer", _ANSWER)
                except NotSeen:
                    visit.unanswered += 1
                else:
                    visit.turns.append(heard - end)
        finally:
            self._forget(user, 0)
            visit.goal = max((figures.get("goal_fps", 0) for figures in user.seen.figures), default=0)
            visit.late = max((figures["late_chunks"] for figures in user.seen.figures), default=0)
            await user.leave()

    def _forget(self, user: User, keep: int) -> None:
        """Drop old sound; keep when it came."""
        old = user.seen.sound[: len(user.seen.sound) - keep]
        self.visit.sounds += [at - self._began for at, _ in old]
        del user.seen.sound[: len(old)]

    async def _leave(self) -> None:
        """End the session. If it has failed, note why."""
        if not self._session:
            return
        try:
            session = await self._server.request("GET", f"/v1/sessions/{self._session['id']}")
            if session["state"] == "FAILED":
                error = session["error"]
                self.visit.outcome, self.visit.reason = "failed", f"{error['code']}: {error['message']}"
            await self._server.request("DELETE", f"/v1/sessions/{self._session['id']}")
        except (ErrorResponse, UserError) as error:
            self.visit.outcome, self.visit.reason = "failed", str(error)

    def _now(self) -> float:
        return time.monotonic() - self._began


async def _watch(lags: list[float]) -> None:
    while True:
        due = time.monotonic() + _LAG_EVERY
        await asyncio.sleep(_LAG_EVERY)
        lags.append(time.monotonic() - due)


def _words(answer: httpx2.Response) -> str:
    try:
        told = answer.json()["error"]
        words = f"{told['code']}: {told['message']}"
    except (ValueError, KeyError, TypeError):
        words = f"HTTP {answer.status_code}"
    again = answer.headers.get("retry-after")
    return f"{words} (try again after {again} s)" if again else words
