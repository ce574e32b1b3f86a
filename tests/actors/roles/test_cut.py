"""Aligner, a model that takes its time, and publisher on one clock that only sleeping moves: both models' clocks."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from actors.pipeline.header import IDLE, Header
from actors.pipeline.session import SessionSpec
from actors.roles.aligner import AudioAligner, AudioChunk
from actors.roles.frame_generator import FrameGenerator
from actors.roles.publisher import RoomPublisher
from actors.roles.timeline import MARGIN
from actors.room.stub import StubRoom
from characters.chunk import SAMPLE_RATE, Clock
from characters.generate.hearing import Hearing, MelHearing, WaveHearing
from characters.generate.networks import load_networks
from characters.generate.window import WindowGenerator

LONG, SHORT = Clock(25, 28), Clock()
MAKING = 0.2
TICK = 0.002


class Room(StubRoom):
    """Keeps the sound itself, and which chunk and frame of it each picture was."""

    def __init__(self, now: object) -> None:
        super().__init__(clock=now)  # type: ignore[arg-type]
        self.sound: list[np.ndarray] = []
        self.pictures: list[tuple[int, int]] = []
        self.frames: list[np.ndarray] = []

    def capture_audio(self, pcm: np.ndarray) -> None:
        super().capture_audio(pcm)
        self.sound.append(pcm.copy())

    def capture_video(self, frame: np.ndarray, timestamp_us: int, number: int) -> None:
        super().capture_video(frame, timestamp_us, number)
        self.pictures.append((int(frame[0, 0]), int(frame[0, 1])))
        self.frames.append(frame.copy())


class Session:
    """One session; `run` lets time pass. The model makes one chunk at a time, each in `making` seconds."""

    def __init__(
        self, clock: Clock = LONG, *, cuts: bool = True, making: float = MAKING, generator: FrameGenerator | None = None
    ) -> None:
        self.clock, self.making, self.now = clock, making, 100.0
        hearing: Hearing = WaveHearing(2.0, clock.samples) if cuts else MelHearing()
        self.aligner = AudioAligner(clock, hearing, cuts=cuts, now=self.time)
        self.publisher = RoomPublisher(
            lambda session: Room(self.time), clock, self.aligner, cuts=cuts, now=self.time, sleep=self.sleep
        )
        self.publisher.reset(SessionSpec(np.zeros((8, 8, 3), np.uint8)))
        self.made: list[AudioChunk] = []
        self.headers: list[Header] = []
        self.asked = self.busy = 0.0  # when the newest chunk was issued, and until when the model works
        self.waiting: list[tuple[float, Header, AudioChunk]] = []
        self.until = 0.0
        self.events: list[tuple[float, object]] = []
        self.cuts, self.flight, self.generator = cuts, 4 if cuts else 3, generator
        self.frames: dict[int, np.ndarray] = {}  # of chunks, as a generator made them

    @property
    def room(self) -> Room:
        assert isinstance(self.publisher.room, Room)
        return self.publisher.room

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        """Time passes in small steps, and the model works meanwhile."""
        end = self.now + seconds
        while self.now < end - 1e-9:
            self.now = min(end, self.now + TICK)
            for at, do in [event for event in self.events if event[0] <= self.now]:
                self.events.remove((at, do))
                do()  # type: ignore[operator]
            self._issue()
        self.now = max(self.now, end)

    def _issue(self) -> None:
        if len(self.waiting) >= self.flight or not self.aligner.due():
            return
        chunk = self.aligner.next()
        began = max(self.now, self.busy)
        self.busy = began + self.making
        header = Header(chunk.index, chunk.response_id, first=chunk.first, frames=self.clock.frames)
        header = header.stamped(0, self.now, self.now).stamped(1, began, self.busy)
        if self.generator is not None:
            _, made = self.generator.step(header, {"heard": torch.from_numpy(chunk.heard)})
            self.frames[chunk.index] = made["frames"].numpy()
        self.waiting.append((self.busy, header, chunk))
        self.made.append(chunk)

    def at(self, seconds: float, do: object) -> None:
        """Do something so long after the beginning."""
        self.events.append((100.0 + seconds, do))

    def cancel(self, response_id: int) -> None:
        self.aligner.cancel(response_id)
        self.publisher.cancel(response_id)

    def run(self, seconds: float) -> None:
        while self.now < 100.0 + seconds:
            if not self.waiting or self.waiting[0][0] > self.now:
                self.sleep(TICK)
                continue
            _, header, chunk = self.waiting[0]
            if not self.cuts and header.cancelled_by(self.publisher._cancelled):
                self.waiting.pop(0)
                continue
            if self.generator is not None:
                frames = self.frames[header.index]
            else:
                frames = np.zeros((self.clock.frames, 12, 8), np.uint8)
                frames[:, 0, 0], frames[:, 0, 1] = header.index, range(self.clock.frames)
            header, _ = self.publisher.step(header, tensors(frames, chunk.pcm))
            self.waiting.pop(0)
            self.headers.append(header)

    def heard(self) -> np.ndarray:
        return np.concatenate(self.room.sound)

    def sounds_from(self) -> float:
        """Seconds after the beginning at which the first sound left."""
        return next(at for at, _, peak in self.room.audio if peak) - 100.0


def tensors(frames: np.ndarray, pcm: np.ndarray) -> dict[str, object]:
    return {"frames": torch.from_numpy(frames), "pcm": torch.from_numpy(pcm)}


def ramp(count: int, start: int = 1) -> np.ndarray:
    """float32 [count], every sample different and none zero."""
    return (np.arange(start, start + count) / 1e6).astype(np.float32)


def together(session: Session) -> None:
    """Every picture left with its own sound, at the model's pace, and all numbers follow one another."""
    room = session.room
    video, audio = list(room.video), list(room.audio)
    assert len(video) == len(audio)
    assert all(abs(v[0] - a[0]) < 1e-6 for v, a in zip(video, audio, strict=True))
    gaps = np.diff([v[0] for v in video])
    assert np.all(gaps > 1 / session.clock.fps - 0.011), "two frames at a time"
    assert session.publisher.deadline.misses == 0
    assert [v[3] for v in video] == list(range(len(video)))
    assert all(pcm.size == session.clock.frame_samples for pcm in room.sound)


@pytest.mark.parametrize("clock, cuts", [(SHORT, False), (LONG, True)])
def test_what_is_pushed_is_heard_whole_whatever_the_clock(clock: Clock, cuts: bool) -> None:
    session, given = Session(clock, cuts=cuts, making=0.2 if cuts else 0.05), ramp(90_000)
    for i in range(3):
        session.at(1.0 + 0.05 * i, lambda i=i: session.aligner.push(0, given[i * 30_000 :][:30_000]))
    session.run(8.0)
    heard = session.heard()
    assert np.array_equal(heard[heard != 0], given)
    first = int(np.flatnonzero(heard)[0])
    assert np.all(heard[first : first + len(given)] != 0), "a gap"
    account = session.aligner.account(0)
    assert (account.pushed, account.played) == (90_000, 90_000)
    together(session)


def test_speech_does_not_wait_for_the_grid() -> None:
    worst = 0.0
    for at in np.arange(2.0, 3.2, 0.07):
        session = Session()
        session.at(at, lambda session=session: session.aligner.push(0, ramp(60_000)))
        session.run(6.0)
        worst = max(worst, session.sounds_from() - at)
        heard = session.heard()
        assert np.array_equal(heard[heard != 0], ramp(60_000))
        together(session)
    print(f"\nlongest wait for the first sound {worst:.3f} s, a chunk is made in {MAKING} s and lasts 1.12 s")
    # Twice a chunk's making: the model may have begun with another one; a look, a rounding to a frame.
    assert worst < 2 * MAKING + MARGIN + 0.04 + 2 * 0.04


def test_a_model_without_cuts_waits_as_before() -> None:
    session = Session(SHORT, cuts=False, making=0.05)
    session.at(2.0, lambda: session.aligner.push(0, ramp(20_000)))
    session.run(4.0)
    assert 0.3 < session.sounds_from() - 2.0 < 0.7
    assert all(header.frames == 4 for header in session.headers)
    together(session)


def test_an_interruption_is_silent_at_once_and_still_soon() -> None:
    session = Session()
    session.at(2.0, lambda: session.aligner.push(0, ramp(200_000)))
    session.at(3.5, lambda: session.cancel(0))
    session.run(7.0)
    last = max(at for at, _, peak in session.room.audio if peak)
    assert last - 103.5 <= 0.04
    idle = {chunk.index for chunk in session.made if chunk.response_id == IDLE}
    still = next(v[0] for v, (index, _) in zip(session.room.video, session.room.pictures, strict=True)
                 if index in idle and v[0] > 103.5)  # fmt: skip
    print(f"\nstill {still - 103.5:.3f} s after the interruption")
    assert still - 103.5 < MAKING + MARGIN + 2 * 0.04
    together(session)
    # What the model heard of the past is what was played.
    follower = next(chunk for chunk in session.made if chunk.index in idle and chunk.first * 960 / SAMPLE_RATE > 3.0)
    played = session.heard()[: follower.first * 960]
    hearing = WaveHearing(2.0, LONG.samples)
    past = np.concatenate((np.zeros(hearing.past, np.float32), played))[-hearing.past :]
    assert np.allclose(follower.heard, hearing.hear(np.concatenate((past, follower.pcm))), atol=1e-7)


def test_what_the_model_hears_is_always_what_is_played() -> None:
    session, rng, hearing = Session(making=0.12), np.random.default_rng(1), WaveHearing(2.0, LONG.samples)
    for i in range(12):
        at = 1.0 + 1.7 * i + rng.uniform(0, 0.5)
        session.at(at, lambda i=i: session.aligner.push(i, ramp(int(rng.uniform(5_000, 60_000)), 1 + 100_000 * i)))
        if i % 2:
            session.at(at + rng.uniform(0.1, 1.5), lambda i=i: session.cancel(i))
    session.run(24.0)
    together(session)
    sound, shown = session.heard(), {header.index: header for header in session.headers}
    checked = 0
    for chunk in session.made:
        header = shown.get(chunk.index)
        if header is None or not header.frames:
            continue
        if chunk.pushed and not sound[chunk.first * 960 + chunk.pushed[0][0]]:
            continue  # over before it began: made for a past that did not come, shown silent until it was cut
        before = np.concatenate((np.zeros(hearing.past, np.float32), sound[: chunk.first * 960]))[-hearing.past :]
        expected = hearing.hear(np.concatenate((before, chunk.pcm)))
        assert np.allclose(chunk.heard, expected, atol=1e-6), chunk.index
        checked += 1
    cut = sum(header.frames < 28 for header in session.headers)
    print(f"\n{checked} chunks shown, {cut} cut")
    assert checked > 20 and cut >= 12


def test_sound_that_comes_late_goes_on_in_the_frame_in_which_it_ran_out() -> None:
    session, given = Session(), ramp(40_000)
    session.at(2.0, lambda: session.aligner.push(0, given[:10_100]))  # ends within a frame
    session.at(2.3, lambda: session.aligner.push(0, given[10_100:]))
    session.run(6.0)
    heard = session.heard()
    first = int(np.flatnonzero(heard)[0])
    assert np.array_equal(heard[first : first + 40_000], given), "a gap of a part of a frame"
    together(session)


def test_the_next_response_follows_the_last_one_soon() -> None:
    session = Session()
    session.at(2.0, lambda: (session.aligner.push(0, ramp(10_100)), session.aligner.push(1, ramp(9_000, 500_000))))
    session.run(6.0)
    heard = session.heard()
    sounding = np.flatnonzero(heard)
    gap = int(np.diff(sounding).max()) - 1
    print(f"\n{gap / 24:.0f} ms between two responses")
    assert gap / SAMPLE_RATE < MAKING + MARGIN + 0.1
    assert len(sounding) == 19_100
    assert {session.aligner.account(i).played for i in (0, 1)} == {10_100, 9_000}
    together(session)


def test_a_chunk_goes_on_from_the_five_frames_that_were_shown_before_it(window_model: str) -> None:
    """The network's place is taken by one that paints each frame in a shade of its own."""
    generator = WindowGenerator(load_networks(window_model, "cpu", dtype=torch.float32, random_weights=True))
    role, rng, begins = FrameGenerator(generator), np.random.default_rng(4), list[list[int]]()
    role.reset(SessionSpec(rng.integers(0, 255, (32, 32, 3), np.uint8)))

    maker = generator._maker

    def paint(sound, noise, history, shown, reference, colours) -> torch.Tensor:  # type: ignore[no-untyped-def]
        begins.append((history[:, 0, 0, 0] * 1000).round().int().tolist() if shown else [])
        first = (len(begins) - 1) * 28
        shades = torch.tensor([999] * 5 + [first + i for i in range(28)]) / 1000
        maker.frames = shades[:, None, None, None].expand(-1, 32, 32, 3)
        return maker.convert(maker.frames)

    maker.make = paint  # type: ignore[method-assign]
    session = Session(making=0.15, generator=role)
    for i in range(6):
        at = 1.2 + 1.9 * i + rng.uniform(0, 0.6)
        session.at(at, lambda i=i: session.aligner.push(i, ramp(int(rng.uniform(9_000, 50_000)), 1)))
        # At once, so that of the new chunk little or nothing is shown; or in its midst.
        session.at(at + (0.1 if i % 3 == 1 else 0.9), lambda i=i: session.cancel(i))
    session.run(13.0)
    together(session)
    made = {chunk.index: number for number, chunk in enumerate(session.made)}
    shown, short = list[int](), 0
    for header in session.headers:
        if not header.frames:
            continue
        assert header.first == len(shown)
        if shown:
            assert begins[made[header.index]] == shown[-5:], f"chunk {header.index} goes on from other frames"
        shown += [made[header.index] * 28 + i for i in range(header.frames)]
        short += header.frames < 5
    print(
        f"\n{len(session.headers)} chunks, {sum(h.frames < 28 for h in session.headers)} cut, {short} below five frames"
    )
    assert short and sum(header.frames < 28 for header in session.headers) >= 10


def test_what_was_lost_between_processes_is_said_again() -> None:
    session, given = Session(), ramp(100_000)
    session.at(2.0, lambda: session.aligner.push(0, given))
    session.run(4.0)
    session.waiting.clear()
    session.aligner.resume()
    session.run(9.0)
    heard = session.heard()
    assert np.array_equal(heard[heard != 0], given)
    assert session.aligner.account(0).played == 100_000


def test_a_restored_aligner_goes_on_with_the_next_frames() -> None:
    session = Session()
    session.run(3.0)
    state = session.aligner.snapshot()
    other = AudioAligner(LONG, WaveHearing(2.0, LONG.samples), cuts=True)
    other.restore(state)
    chunk = other.next()
    assert (chunk.index, chunk.first) == (state["index"], state["first"]) and chunk.first == session.made[-1].first + 28


def test_a_chunk_that_hears_the_next_one_cannot_be_cut() -> None:
    with pytest.raises(AssertionError):
        AudioAligner(SHORT, MelHearing(), cuts=True)
    with pytest.raises(dataclasses.FrozenInstanceError):
        LONG.fps = 30  # type: ignore[misc]
    with pytest.raises(ValueError, match="whole samples"):
        Clock(23, 4)
