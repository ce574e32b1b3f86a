"""What can be seen of a LiveKit room without a server; with one, see the tests of deploy."""

from __future__ import annotations

import time
from types import SimpleNamespace

import numpy as np
import pytest

from actors.pipeline.header import Header
from actors.pipeline.session import RoomAddress, SessionSpec
from actors.roles.publisher import RoomPublisher
from actors.room.livekit import LivekitRoom
from characters.chunk import Clock
from characters.errors import UserError
from characters.media.mark import Mark


class Unconnected(LivekitRoom):
    """The SDK's sources, published nowhere."""

    async def _join(self, address: RoomAddress) -> object:
        self._make_sources()

        async def disconnect() -> None:
            pass

        return SimpleNamespace(disconnect=disconnect)


def test_the_sdk_takes_what_the_publisher_gives() -> None:
    room = Unconnected(RoomAddress("livekit"), 64, 48, 24)
    publisher = RoomPublisher(lambda session: room, Clock())
    publisher.reset(SessionSpec(np.zeros((64, 48, 3), np.uint8)))
    frames, pcm = np.full((4, 96, 48), 100, np.uint8), np.full(4000, 2.0, np.float32)
    start = time.monotonic()
    for i in range(6):
        assert publisher.publish(Header(i, 0, first=4 * i, frames=4), frames, pcm) == (4, 4000)
    assert time.monotonic() - start == pytest.approx(23 / 24, abs=0.15)
    assert room._audio.queued_duration < 0.2, "sound piles up"
    publisher.cancel(0)
    time.sleep(0.05)
    publisher.close()
    assert not room._thread.is_alive()


def test_a_server_that_is_not_there_is_the_users_error() -> None:
    with pytest.raises(UserError, match="cannot join the LiveKit room"):
        LivekitRoom(RoomAddress("livekit", "ws://127.0.0.1:9", "no token"), 64, 48, 24)


def test_a_marked_room_shows_the_words() -> None:
    room = Unconnected(RoomAddress("livekit"), 272, 176, 24, mark=Mark(272, 176))
    sent: list[np.ndarray] = []
    try:
        close = room._video.aclose
        room._video = SimpleNamespace(  # type: ignore[assignment]
            capture_frame=lambda picture, **_: sent.append(np.frombuffer(picture.data, np.uint8)), aclose=close
        )
        frame = np.full((408, 176), 100, np.uint8)
        room.capture_video(frame, 0, 0)
    finally:
        room.close()
    (shown,) = sent
    luma = shown[: 272 * 176].reshape(272, 176)
    assert (frame == 100).all() and (luma[:200] == 100).all() and luma[240:].max() > 200 > 80 > luma[240:].min()
