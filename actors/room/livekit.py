"""A LiveKit room: one audio and one video track, published by the livekit SDK from a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from actors.pipeline.session import RoomAddress
from characters.chunk import SAMPLE_RATE
from characters.errors import UserError
from characters.media.mark import Mark

if TYPE_CHECKING:
    from livekit import rtc

log = logging.getLogger(__name__)

AGENT_SOUND = "lk.audio_stream"  # topic of the byte streams in which an agent sends what its avatar is to say
_LONGEST_STREAM = 1 << 28  # bytes: 23 minutes of stereo at 48 kHz
# Why an avatar has to leave a room for good.
_DISMISSED = ("PARTICIPANT_REMOVED", "ROOM_DELETED", "ROOM_CLOSED", "DUPLICATE_IDENTITY")

# Sound that the SDK may hold: more than one block, so that a late wake-up of this process is not heard.
_AUDIO_QUEUE_MS = 200
_TIMEOUT = 25.0
# Browsers play the tracks of one stream in sync.
_STREAM = "character"


class LivekitRoom:
    """A room in which the character publishes. Create it in the process that uses it: the SDK does not survive a fork.

    Args:
        address: of the room.
        height, width: of the frames.
        fps: frames a second.
        mark: drawn on every frame; None = nothing is.

    Attributes:
        room: the SDK's; its callbacks and coroutines belong to `loop`.
        loop: the event loop of this room's thread.
        ended: why the avatar of an agent has left the room for good, which is no failure; "" while it is there.

    Raises:
        UserError: the server cannot be reached or refuses the token.
    """

    # The SDK takes sound from its queue every 10 ms, and sends a packet when it holds 20 ms.
    sound_lag = 0.025

    def __init__(self, address: RoomAddress, height: int, width: int, fps: int, mark: Mark | None = None) -> None:
        from livekit import rtc  # its native library starts threads, which do not survive a fork

        self._rtc = rtc
        self._height, self._width, self._fps, self._mark = height, width, fps, mark
        self._numbered = address.agent is None
        self._gone = threading.Event()
        self.ended = ""
        self._on_stream: Callable[[Any, str], None] | None = None
        self._early: list[tuple[Any, str]] = []  # streams that began before `take_streams`
        self._lock = threading.Lock()
        self._waiting = 0  # samples that the loop has not handed to the SDK yet
        self._sent_at = 0.0  # when the SDK will have sent the sound that it has, at the pace of the sound
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="livekit", daemon=True)
        self._thread.start()
        try:
            self.room = self._call(self._join(address))
        except Exception as e:
            self._stop()
            raise UserError(f"cannot join the LiveKit room at {address.url}: {str(e) or type(e).__name__}") from e

    def capture_video(self, frame: np.ndarray, timestamp_us: int, number: int) -> None:
        """See `Outlet.capture_video`.

        Raises:
            ConnectionError: the connection is lost for good. The SDK mends short losses by itself.
        """
        if self.ended:
            return
        if self._gone.is_set():
            raise ConnectionError("the LiveKit server has ended the connection")
        rtc = self._rtc
        frame = frame if self._mark is None else self._mark.on_i420(frame)
        picture = rtc.VideoFrame(self._width, self._height, rtc.VideoBufferType.I420, frame.tobytes())
        about = rtc.FrameMetadata(frame_id=number % 2**32) if self._numbered else None
        self._video.capture_frame(picture, timestamp_us=timestamp_us, metadata=about)

    def capture_audio(self, pcm: np.ndarray) -> None:
        """See `Outlet.capture_audio`. The sound is clipped to [-1, 1]."""
        samples = np.round(np.clip(pcm, -1, 1) * 32767).astype(np.int16)
        frame = self._rtc.AudioFrame(samples.tobytes(), SAMPLE_RATE, 1, len(samples))
        with self._lock:
            self._waiting += len(samples)
        # It ends when the SDK has room. Nobody waits for it: the publisher goes at the pace of the sound already.
        asyncio.run_coroutine_threadsafe(self._play(frame), self.loop)

    def ahead(self) -> float:
        """See `Outlet.ahead`."""
        with self._lock:
            return max(0.0, self._sent_at - time.monotonic()) + self._waiting / SAMPLE_RATE

    def clear(self) -> None:
        """See `Outlet.clear`."""
        self.loop.call_soon_threadsafe(self._clear)

    def close(self) -> None:
        """See `Outlet.close`."""
        with contextlib.suppress(Exception):  # the server may have gone
            self._call(self._leave())
        self._stop()

    def take_streams(self, handler: Callable[[Any, str], None]) -> None:
        """Hand each stream of an agent's sound, with its sender's identity, to `handler`; in the room's event loop."""
        self._on_stream = handler
        for reader, identity in self._early:
            handler(reader, identity)
        self._early.clear()

    async def end(self, reason: str) -> None:
        """Leave the room for good, before `close`; in the room's event loop."""
        if not self.ended:
            self.ended = reason
            await self.room.disconnect()

    def _stream_began(self, reader: Any, identity: str) -> None:
        if self._on_stream is not None:
            self._on_stream(reader, identity)
        else:
            self._early.append((reader, identity))

    def _disconnected(self, reason: Any, avatar: bool) -> None:
        name = self._rtc.DisconnectReason.Name(reason)
        if avatar and not self.ended and name in _DISMISSED:
            self.ended = name.lower()
        log.info("the connection to the room has ended: %s", name)
        self._gone.set()

    async def _play(self, frame: rtc.AudioFrame) -> None:
        with self._lock:
            self._waiting -= frame.samples_per_channel
            self._sent_at = max(self._sent_at, time.monotonic()) + frame.samples_per_channel / SAMPLE_RATE
        await self._audio.capture_frame(frame)

    def _clear(self) -> None:
        self._audio.clear_queue()
        with self._lock:
            self._sent_at = 0.0

    async def _join(self, address: RoomAddress):  # type: ignore[no-untyped-def]  # rtc.Room, imported late
        rtc = self._rtc
        room = rtc.Room(loop=self.loop)
        avatar = address.agent is not None
        room.on("disconnected", lambda reason: self._disconnected(reason, avatar))
        if avatar:  # the agent may send as soon as the room knows of us
            room.register_byte_stream_handler(AGENT_SOUND, self._stream_began)
        # Tracks are subscribed to one by one: nothing here watches the user's camera.
        streams = rtc.DataStreamOptions(max_payload_byte_length=_LONGEST_STREAM) if avatar else None
        await room.connect(address.url, address.token, rtc.RoomOptions(auto_subscribe=False, data_stream=streams))
        self._make_sources()
        audio = rtc.LocalAudioTrack.create_audio_track("voice", self._audio)
        video = rtc.LocalVideoTrack.create_video_track("face", self._video)
        await room.local_participant.publish_track(
            audio,
            rtc.TrackPublishOptions(source=rtc.TrackSource.SOURCE_MICROPHONE, stream=_STREAM, dtx=False),
        )
        await room.local_participant.publish_track(
            video,
            rtc.TrackPublishOptions(
                source=rtc.TrackSource.SOURCE_CAMERA,
                stream=_STREAM,
                simulcast=False,
                video_codec=rtc.VideoCodec.VP8,
                # For our own clients. Older servers hand frames' numbers on to those that do not know them, too.
                frame_metadata_features=[] if avatar else [rtc.FrameMetadataFeature.FMF_FRAME_ID],
                video_encoding=rtc.VideoEncoding(max_bitrate=address.bitrate, max_framerate=self._fps),
            ),
        )
        return room

    def _make_sources(self) -> None:
        rtc = self._rtc
        self._audio = rtc.AudioSource(SAMPLE_RATE, 1, queue_size_ms=_AUDIO_QUEUE_MS, loop=self.loop)
        self._video = rtc.VideoSource(self._width, self._height)

    async def _leave(self) -> None:
        await self.room.disconnect()
        await self._audio.aclose()
        await self._video.aclose()

    def _call(self, coroutine):  # type: ignore[no-untyped-def]  # passes a coroutine's type through
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(_TIMEOUT)

    def _stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(_TIMEOUT)


def is_end_of_call(data: bytes) -> bool:
    """Whether a packet says in Runway's words that its sender hangs up."""
    if len(data) > 1000:
        return False
    try:
        message = json.loads(data)
    except (ValueError, RecursionError):
        return False
    return isinstance(message, dict) and message.get("type") == "END_CALL"
