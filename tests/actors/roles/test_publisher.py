"""Pacing, on a clock that only sleeping moves."""

from __future__ import annotations

import numpy as np
import pytest

from actors.channels.protocol import ChannelAborted
from actors.pipeline.header import Header
from actors.pipeline.session import SessionSpec
from actors.roles.publisher import RoomPublisher
from actors.room.stub import StubRoom
from characters.chunk import Clock

SESSION = SessionSpec(np.zeros((64, 48, 3), np.uint8))
FRAMES = np.stack([np.full((96, 48), 50 + i, np.uint8) for i in range(4)])
PCM = np.repeat(np.array([0.1, 0.2, 0.3, 0.4], np.float32), 1000)
FRAME = 1 / 24


def head(index: int, response_id: int) -> Header:
    return Header(index, response_id, first=4 * index, frames=4)


class Time:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Time:
    return Time()


@pytest.fixture
def publisher(clock: Time) -> RoomPublisher:
    made = RoomPublisher(lambda session: StubRoom(clock=clock), Clock(), now=clock, sleep=clock.sleep)
    made.reset(SESSION)
    return made


def room_of(publisher: RoomPublisher) -> StubRoom:
    assert isinstance(publisher.room, StubRoom)
    return publisher.room


def test_picture_and_sound_leave_together_at_24_frames_a_second(publisher: RoomPublisher, clock: Time) -> None:
    for i in range(6):
        assert publisher.publish(head(i, 0), FRAMES, PCM) == (4, 4000)
    room = room_of(publisher)
    video, audio = list(room.video), list(room.audio)
    assert len(video) == len(audio) == 24
    for i, ((shown, stamp, luma, number), (played, samples, peak)) in enumerate(zip(video, audio, strict=True)):
        assert shown == played == pytest.approx(100 + i * FRAME, abs=1e-6)
        assert stamp == pytest.approx(shown * 1e6, abs=2)
        assert luma == 50 + i % 4 and number == i
        assert samples == 1000 and peak == pytest.approx(0.1 * (1 + i % 4))
    assert publisher.deadline.misses == 0


def test_a_late_chunk_holds_both(publisher: RoomPublisher, clock: Time) -> None:
    publisher.publish(head(0, 0), FRAMES, PCM)
    clock.now += 0.5
    publisher.publish(head(1, 0), FRAMES, PCM)
    publisher.publish(head(2, 0), FRAMES, PCM)
    room = room_of(publisher)
    times = [t for t, *_ in room.video]
    assert times == [t for t, _, _ in room.audio]
    gaps = np.diff(times)
    assert gaps[3] == pytest.approx(0.5)
    assert np.allclose(np.delete(gaps, 3), FRAME)
    assert publisher.deadline.misses == 1
    assert publisher.deadline.lost == pytest.approx(0.5 - FRAME)


def test_a_little_late_stays_on_the_grid(publisher: RoomPublisher, clock: Time) -> None:
    for i in range(50):
        publisher.publish(head(i, 0), FRAMES, PCM)
        clock.now += FRAME + 0.003  # each chunk 3 ms after it was due
    assert publisher.deadline.misses == 0
    assert room_of(publisher).video[-1][0] == pytest.approx(100 + 199 * FRAME, abs=0.004)


def test_sound_that_has_not_been_sent_goes_first(publisher: RoomPublisher, clock: Time) -> None:
    publisher.publish(head(0, 0), FRAMES, PCM)
    room = room_of(publisher)
    room.sent_at = 100 + 4 * FRAME + 0.03
    publisher.publish(head(1, 0), FRAMES, PCM)
    assert publisher.deadline.misses == 0
    room.sent_at = 100 + 8 * FRAME + 0.2
    publisher.publish(head(2, 0), FRAMES, PCM)
    assert room.video[8][0] == room.audio[8][0] == pytest.approx(100 + 8 * FRAME + 0.2)
    assert publisher.deadline.misses == 1 and publisher.deadline.lost == pytest.approx(0.2)


def test_a_picture_waits_for_its_sound(publisher: RoomPublisher, clock: Time) -> None:
    room = room_of(publisher)
    publisher.publish(head(0, 0), FRAMES, PCM)
    room.sent_at, room.sound_lag = 100 + 4 * FRAME + 0.02, 0.005
    publisher.publish(head(1, 0), FRAMES, PCM)
    waits = [shown - played for (shown, *_), (played, *_) in zip(room.video, room.audio, strict=True)]
    assert waits == pytest.approx([0] * 4 + [0.025] + [0.005] * 3)
    assert [stamp / 1e6 for _, stamp, *_ in room.video] == pytest.approx([shown for shown, *_ in room.video], abs=2e-6)
    assert publisher.deadline.misses == 0


def test_barge_in_silences_the_chunk_under_way(publisher: RoomPublisher, clock: Time) -> None:
    room = room_of(publisher)
    capture = room.capture_video

    def interrupt(frame: np.ndarray, timestamp_us: int, number: int) -> None:
        capture(frame, timestamp_us, number)
        if len(room.video) == 2:
            publisher.cancel(7)

    room.capture_video = interrupt  # type: ignore[method-assign]
    assert publisher.publish(head(0, 7), FRAMES, PCM) == (4, 2000)
    assert [peak > 0 for _, _, peak in room.audio] == [True, True, False, False]
    assert len(room.video) == 4 and room.clears == 1
    assert publisher.publish(head(1, 8), FRAMES, PCM) == (4, 4000)


def test_leaving_ends_a_wait(publisher: RoomPublisher) -> None:
    publisher.publish(head(0, 0), FRAMES, PCM)
    publisher._sleep = lambda seconds: publisher.close()
    with pytest.raises(ChannelAborted):
        publisher.publish(head(1, 0), FRAMES, PCM)


def test_reset_joins_anew_and_close_leaves(publisher: RoomPublisher) -> None:
    first = room_of(publisher)
    publisher.publish(head(0, 0), FRAMES, PCM)
    publisher.reset(SESSION)
    assert first.closed and room_of(publisher) is not first
    assert publisher.deadline.chunks == 0
    second = room_of(publisher)
    publisher.close()
    assert second.closed and publisher.room is None
    publisher.close()
