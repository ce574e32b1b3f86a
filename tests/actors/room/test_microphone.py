"""Who of several participants is heard."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from livekit import rtc

from actors.room import microphone as module
from actors.room.microphone import Microphone
from actors.voice.tasks import Tasks


class Publication:
    def __init__(self, room: Room, sid: str) -> None:
        self.sid, self.kind, self.muted, self.wanted = sid, rtc.TrackKind.KIND_AUDIO, False, False
        self._room = room

    def set_subscribed(self, wanted: bool) -> None:
        self.wanted = wanted


class Room:
    """People with microphones. What was asked of the server happens in `settle`."""

    def __init__(self) -> None:
        self.remote_participants: dict[str, Any] = {}
        self._handlers: list[tuple[str, Callable[..., Any]]] = []
        self._subscribed: dict[str, tuple[Any, Publication, Any]] = {}

    def on(self, event: str, callback: Callable[..., Any]) -> None:
        self._handlers.append((event, callback))

    def emit(self, event: str, *about: Any) -> None:
        for name, callback in self._handlers:
            if name == event:
                callback(*about)

    def join(self, identity: str, *sids: str) -> Any:
        who = SimpleNamespace(identity=identity, track_publications={})
        self.remote_participants[identity] = who
        for sid in sids:
            self.publish(identity, sid)
        return who

    def publish(self, identity: str, sid: str) -> Publication:
        who = self.remote_participants[identity]
        publication = who.track_publications[sid] = Publication(self, sid)
        self.emit("track_published", publication, who)
        return publication

    def unpublish(self, identity: str, sid: str) -> None:
        who = self.remote_participants[identity]
        self.emit("track_unpublished", who.track_publications.pop(sid), who)

    def leave(self, identity: str) -> None:
        self.emit("participant_disconnected", self.remote_participants.pop(identity))

    def mute(self, identity: str, sid: str, muted: bool) -> None:
        who = self.remote_participants[identity]
        who.track_publications[sid].muted = muted
        self.emit("track_muted" if muted else "track_unmuted", who, who.track_publications[sid])

    async def settle(self) -> None:
        await asyncio.sleep(0.01)
        there = {p: who for who in self.remote_participants.values() for p in who.track_publications.values()}
        for sid, (track, publication, who) in list(self._subscribed.items()):
            if publication not in there or not publication.wanted:
                del self._subscribed[sid]
                self.emit("track_unsubscribed", track, publication, who)
        for publication, who in there.items():
            if publication.wanted and publication.sid not in self._subscribed:
                track = SimpleNamespace(sid=publication.sid, kind=publication.kind)
                self._subscribed[publication.sid] = track, publication, who
                self.emit("track_subscribed", track, publication, who)
        await asyncio.sleep(0.01)

    @property
    def subscribed(self) -> set[str]:
        return set(self._subscribed)


@pytest.fixture(autouse=True)
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    async def read(self: Microphone, track: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(module.Microphone, "_read", read)


def run(scenario: Callable[[Room, Callable[[str], Microphone]], Any]) -> None:
    async def all_of_it() -> None:
        room, tasks = Room(), Tasks()
        await scenario(room, lambda user: Microphone(room, tasks, lambda *_: None, lambda: None, user))
        await tasks.cancel()

    asyncio.run(all_of_it())


def test_a_second_microphone_takes_nobodys_place() -> None:
    async def scenario(room: Room, make: Callable[[str], Microphone]) -> None:
        room.join("ada", "A1")
        microphone = make("")
        await room.settle()
        assert (microphone.track, microphone.speaker, microphone.pending()) == ("A1", "ada", False)
        room.join("bob", "B1")
        await room.settle()
        assert (microphone.track, microphone.speaker) == ("A1", "ada") and room.subscribed == {"A1"}
        assert microphone.owners == ["ada", "bob"]
        room.leave("bob")
        await room.settle()
        assert (microphone.track, microphone.speaker) == ("A1", "ada")

    run(scenario)


def test_the_sessions_own_user_is_heard_whenever_they_come_and_the_first_again_after_them() -> None:
    async def scenario(room: Room, make: Callable[[str], Microphone]) -> None:
        microphone = make("ada")
        room.join("bob", "B1")
        await room.settle()
        assert microphone.speaker == "bob", "better than nobody"
        room.join("ada")
        await room.settle()
        assert microphone.speaker == "bob", "ada only writes"
        room.publish("ada", "A1")
        assert microphone.pending()
        await room.settle()
        assert (microphone.track, microphone.speaker) == ("A1", "ada") and room.subscribed == {"A1"}
        room.leave("ada")
        await room.settle()
        assert (microphone.track, microphone.speaker) == ("B1", "bob")
        room.leave("bob")
        await room.settle()
        assert microphone.track is None and not microphone.pending() and not room.subscribed

    run(scenario)


def test_a_muted_an_unpublished_and_a_republished_track() -> None:
    async def scenario(room: Room, make: Callable[[str], Microphone]) -> None:
        microphone = make("")
        room.join("ada", "A1")
        room.join("bob", "B1")
        await room.settle()
        room.mute("ada", "A1", True)
        await room.settle()
        assert microphone.track == "A1", "who mutes keeps their turn"
        room.publish("ada", "A2")  # another device, before the first is given up
        await room.settle()
        assert microphone.track == "A2"
        room.unpublish("ada", "A1")
        await room.settle()
        assert microphone.track == "A2"
        room.unpublish("ada", "A2")
        await room.settle()
        assert (microphone.track, microphone.speaker) == ("B1", "bob")
        room.publish("ada", "A3")
        await room.settle()
        assert microphone.speaker == "bob", "who is heard stays so"
        room.leave("bob")
        await room.settle()
        assert microphone.track == "A3"
        room.publish("ada", "A3")  # as after a reconnection: the same sid, to be asked for again
        assert room.remote_participants["ada"].track_publications["A3"].wanted

    run(scenario)
