"""A user without a browser, for tests and measurements: joins a room, speaks, and keeps what is seen and heard."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from livekit import rtc

from actors.room.reliable_text import ACK, Inbox
from characters.chunk import SAMPLE_RATE

_BLOCK = SAMPLE_RATE // 50
_KEPT_FRAMES = 200
_CHARACTER = "character"
_WITNESS_SECONDS = 0.15  # between two frames that the server is told of
_QUEUE_MS = 60  # of the microphone; sound has been "said" when it leaves this queue


@dataclass
class Seen:
    """What the user saw and heard, each with the seconds of `time.monotonic` at which it came."""

    frames: list[tuple[float, np.ndarray]] = field(default_factory=list)
    sound: list[tuple[float, np.ndarray]] = field(default_factory=list)
    captions: list[tuple[float, str, str, bool]] = field(default_factory=list)  # sender, text, final
    rendered: list[tuple[float, int]] = field(default_factory=list)  # number of a frame, now and then
    notices: list[str] = field(default_factory=list)
    figures: list[dict[str, Any]] = field(default_factory=list)
    states: list[tuple[float, str]] = field(default_factory=list)  # of the character: "listening", ...; "gone"


class NotSeen(Exception):
    """What a user waited for did not come in time."""


class User:
    """Joins with a token. As in a browser, the microphone always sends: silence, or what `say` was given.

    Args:
        on_frame: called with each picture: when it came, uint8 [H * 3 / 2, W] in I420.
    """

    def __init__(self, on_frame: Callable[[float, np.ndarray], None] = lambda at, i420: None) -> None:
        self.room = rtc.Room()
        self.seen = Seen()
        self.frames = 0
        self._on_frame = on_frame
        self._tasks: set[asyncio.Task[Any]] = set()
        self._to_say: asyncio.Queue[np.ndarray] = asyncio.Queue()
        self._source: rtc.AudioSource | None = None
        self.said_from = self.said_until = 0.0
        self._inbox = Inbox(self.room)
        self._acks: set[str] = set()

    async def join(self, url: str, token: str, *, microphone: bool = True, camera: bool = False) -> None:
        """Connect, and publish."""
        self.room.on("track_subscribed", lambda track, *_: self._spawn(self._take(track)))
        self.room.on("data_received", self._on_data)
        self.room.on("participant_attributes_changed", self._on_attributes)
        self.room.on("participant_disconnected", lambda who: self._on_attributes({"lk.agent.state": "gone"}, who))
        self.room.register_text_stream_handler(
            "lk.transcription", lambda reader, who: self._spawn(self._caption(reader, who))
        )
        self.room.register_text_stream_handler(
            "characters.notice", lambda reader, who: self._spawn(self._notice(reader, who))
        )
        await self.room.connect(url, token)
        if microphone:
            self._source = rtc.AudioSource(SAMPLE_RATE, 1, queue_size_ms=_QUEUE_MS)
            track = rtc.LocalAudioTrack.create_audio_track("microphone", self._source)
            options = rtc.TrackPublishOptions(source=rtc.TrackSource.SOURCE_MICROPHONE, dtx=False)
            await self.room.local_participant.publish_track(track, options)
            self._spawn(self._speak())
        self._spawn(self._report_rendered())
        if camera:
            self._camera = rtc.VideoSource(64, 48)
            video = rtc.LocalVideoTrack.create_video_track("camera", self._camera)
            options = rtc.TrackPublishOptions(source=rtc.TrackSource.SOURCE_CAMERA)
            await self.room.local_participant.publish_track(video, options)
            self._spawn(self._film())

    async def leave(self) -> None:
        """Disconnect."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.room.disconnect()

    def say(self, pcm: np.ndarray) -> None:
        """Say this after what is being said: float32 [n] at 24 kHz."""
        self._to_say.put_nowait(pcm)

    async def type(self, text: str, timeout: float = 60.0) -> None:
        """Write to the character, again and again until it says that it has read it, as the page does.

        Raises:
            NotSeen: it did not say so within `timeout` seconds.
        """
        key, give_up = secrets.token_hex(8), time.monotonic() + timeout
        while key not in self._acks:
            if time.monotonic() >= give_up:
                raise NotSeen(f"{text!r} did not arrive")
            with contextlib.suppress(rtc.StreamError, TimeoutError):
                async with asyncio.timeout(1.0):
                    await self.room.local_participant.send_text(text, topic="lk.chat", attributes={ACK: key})
            for _ in range(20):
                if key not in self._acks:
                    await asyncio.sleep(0.05)

    async def spoken(self) -> float:
        """Wait until everything has been said. Returns when that was."""
        while not self._to_say.empty() or time.monotonic() < self.said_until:
            await asyncio.sleep(0.01)
        return self.said_until

    async def until(self, condition: Callable[[], Any], what: str, timeout: float = 30.0) -> Any:
        """Wait until a condition holds. Returns what it returned.

        Raises:
            NotSeen: it did not hold within `timeout` seconds; the message is `what`.
        """
        give_up = time.monotonic() + timeout
        while not (found := condition()):
            if time.monotonic() >= give_up:
                raise NotSeen(what)
            await asyncio.sleep(0.02)
        return found

    async def ask(self, method: str) -> str:
        """Call a method of the character's participant."""
        return await self.room.local_participant.perform_rpc(destination_identity=_CHARACTER, method=method, payload="")

    def heard(self, since: float = 0.0) -> np.ndarray:
        """The sound that came since then: float32 [n] at 24 kHz."""
        blocks = [pcm for at, pcm in self.seen.sound if at >= since]
        return np.concatenate(blocks) if blocks else np.zeros(0, np.float32)

    def loud(self, since: float, level: float = 0.02) -> float | None:
        """When the first sound louder than `level` came after `since`; None if none came."""
        return next((at for at, pcm in self.seen.sound if at >= since and np.abs(pcm).max(initial=0) > level), None)

    def quiet_since(self, level: float = 0.01) -> float:
        """When the newest sound louder than `level` came; 0 if none came."""
        return next((at for at, pcm in reversed(self.seen.sound) if np.abs(pcm).max(initial=0) > level), 0.0)

    def said_by(self, sender: str, *, final: bool = True, since: float = 0.0) -> list[str]:
        """Captions of one participant."""
        return [t for at, who, t, end in self.seen.captions if who == sender and (end or not final) and at >= since]

    async def _speak(self) -> None:
        assert self._source is not None
        while True:
            try:
                pcm = self._to_say.get_nowait()
            except asyncio.QueueEmpty:
                pcm = np.zeros(_BLOCK, np.float32)
            else:
                self.said_from = time.monotonic() + self._source.queued_duration
                self.said_until = self.said_from + len(pcm) / SAMPLE_RATE
            for start in range(0, len(pcm), _BLOCK):
                block = pcm[start : start + _BLOCK]
                data = (np.clip(np.pad(block, (0, _BLOCK - len(block))), -1, 1) * 32767).astype(np.int16).tobytes()
                await self._source.capture_frame(rtc.AudioFrame(data, SAMPLE_RATE, 1, _BLOCK))

    async def _film(self) -> None:
        while True:
            self._camera.capture_frame(rtc.VideoFrame(64, 48, rtc.VideoBufferType.I420, bytes(64 * 48 * 3 // 2)))
            await asyncio.sleep(0.1)

    async def _take(self, track: rtc.Track) -> None:
        if track.kind == rtc.TrackKind.KIND_AUDIO:
            async for event in rtc.AudioStream(track, sample_rate=SAMPLE_RATE, num_channels=1):
                pcm = np.frombuffer(event.frame.data, np.int16).astype(np.float32) / 32768
                self.seen.sound.append((time.monotonic(), pcm))
        else:
            async for event in rtc.VideoStream(track, format=rtc.VideoBufferType.I420):
                frame, now = event.frame, time.monotonic()
                self.frames += 1
                told = self.seen.rendered[-1][0] if self.seen.rendered else 0.0
                if event.metadata is not None and now - told >= _WITNESS_SECONDS:
                    self.seen.rendered.append((now, event.metadata.frame_id))
                i420 = np.frombuffer(frame.data, np.uint8).reshape(frame.height * 3 // 2, frame.width)
                self._on_frame(now, i420)
                self.seen.frames.append((now, i420.copy()))
                del self.seen.frames[:-_KEPT_FRAMES]

    async def _report_rendered(self) -> None:
        """Tell the server once a second when frames were seen, as the page does."""
        told = 0
        while True:
            await asyncio.sleep(1.0)
            now = time.monotonic()
            # A chunk is known to the server once its last frame has left.
            new = [(at, number) for at, number in self.seen.rendered[told : told + 100] if now - at > 0.2]
            told += len(new)
            report = json.dumps([[number, round(1000 * (now - at))] for at, number in new])
            with contextlib.suppress(Exception):  # while there is no connection
                await self.room.local_participant.publish_data(report, reliable=False, topic="characters.rendered")

    async def _caption(self, reader: Any, who: str) -> None:
        text = await self._inbox.read(reader)
        # As in the page: captions of the user's own words come under the user's identity.
        if text is not None and (self._is_character(who) or who == self.room.local_participant.identity):
            final = reader.info.attributes.get("lk.transcription_final") == "true"
            self.seen.captions.append((time.monotonic(), who, text, final))

    async def _notice(self, reader: Any, who: str) -> None:
        if (text := await self._inbox.read(reader)) and self._is_character(who):
            self.seen.notices.append(text)

    def _is_character(self, identity: str) -> bool:
        """Whether it is an identity that the application gives to no user."""
        who = self.room.remote_participants.get(identity)
        return identity == _CHARACTER or (who is not None and who.kind == rtc.ParticipantKind.PARTICIPANT_KIND_AGENT)

    def _on_attributes(self, changed: dict[str, str], who: rtc.Participant) -> None:
        if who.identity == _CHARACTER and (state := changed.get("lk.agent.state")):
            self.seen.states.append((time.monotonic(), state))

    def _on_data(self, packet: rtc.DataPacket) -> None:
        if packet.participant is None or not self._is_character(packet.participant.identity):
            return
        if packet.topic == ACK:
            self._acks.add(packet.data.decode())
        elif packet.topic == "characters.figures":
            with contextlib.suppress(ValueError):
                self.seen.figures.append(json.loads(packet.data))

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
