"""The session's clock: cuts speech into chunks, with silence where nobody speaks, and computes what the model hears."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from actors.channels.protocol import ChannelAborted
from actors.pipeline.header import IDLE, NONE_CANCELLED, Header
from actors.pipeline.loop import LoopRole
from actors.roles.timeline import Timeline
from characters.chunk import SAMPLE_RATE, Clock
from characters.generate.hearing import Hearing

# Samples that may wait to be played. Speech is made faster than it is played, and a reply can be long.
CAPACITY = 120 * SAMPLE_RATE
# Responses whose accounts are kept.
_ACCOUNTS = 64
# Seconds: sound that came in one go is waited for so long, and the first of it no longer than that.
_GO, _PATIENCE = 0.04, 0.15
_LOOK_EVERY = 0.02


@dataclass(slots=True, eq=False)
class AudioChunk:
    """The sound of one chunk.

    Attributes:
        index: position on the clock.
        response_id: of the sound in it; IDLE if there is none.
        pcm: float32 [clock.samples], mono at 24 kHz.
        heard: float32, what the model hears (see `Hearing`).
        pushed: half-open ranges of pcm that hold pushed samples; the rest is silence.
        first: number of its first frame in the session.
    """

    index: int
    response_id: int
    pcm: np.ndarray
    heard: np.ndarray
    pushed: tuple[tuple[int, int], ...]
    first: int

    def spoken(self, samples: int) -> int:
        """Pushed samples among the first `samples` samples."""
        return sum(max(0, min(stop, samples) - start) for start, stop in self.pushed)

    def sounds(self, samples: int) -> int:
        """How many of the first `samples` samples there are up to the last pushed one; 0 if there is none."""
        return max((min(stop, samples) for start, stop in self.pushed if start < samples), default=0)


@dataclass(slots=True)
class Account:
    """Samples of one response: pushed, and played to the listener."""

    pushed: int = 0
    played: int = 0


@dataclass(slots=True)
class _Draft:
    """A chunk whose sound is being decided on."""

    pcm: np.ndarray
    response_id: int = IDLE
    decided: int = 0  # samples from its start that can no longer change
    pushed: list[tuple[int, int]] = field(default_factory=list)


class AudioAligner(LoopRole):
    """Turns pushed speech into an endless sequence of chunks. Every method may be called from any thread.

    A chunk holds sound of one response only: the next response starts in the next chunk. What the model hears with a
    chunk may reach into the next one, whose beginning is decided on with it then.

    A model that can go on from any frame is not waited for: when speech begins, when it goes on after the sound ran
    out, and when it is interrupted, what was issued is cut as early as a new chunk can follow. Sound that was cut away
    comes again in the new chunk, unless its response is over. What the model hears of the past is what was played.

    Args:
        clock: of the model.
        hearing: of the model.
        cuts: whether the model can go on from any frame.
        now: seconds; for tests.
    """

    def __init__(
        self, clock: Clock, hearing: Hearing, *, cuts: bool = False, now: Callable[[], float] = time.monotonic
    ) -> None:
        assert not (cuts and hearing.ahead), "a chunk that can be cut hears nothing of the next one"
        self.clock, self._hearing, self.cuts, self._now = clock, hearing, cuts, now
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._aborted = False
        self._queue: deque[tuple[int, np.ndarray]] = deque()
        self._queued = 0
        self._cancelled = NONE_CANCELLED
        self._accounts: OrderedDict[int, Account] = OrderedDict()
        self._unplayed: deque[AudioChunk] = deque()
        self._again: deque[AudioChunk] = deque()
        self.reset()

    def reset(self, session: Any = None) -> None:
        """Start at chunk 0 with nothing to say."""
        with self._lock:
            self._index = 0
            self._timeline = Timeline(self.clock)
            # Of the past that the model hears and of what was issued, up to where the next chunk begins.
            self._tape = np.zeros(self._hearing.past, np.float32)
            self._issued: deque[AudioChunk] = deque()  # those of the timeline's pieces, and maybe older ones
            self._playing: AudioChunk | None = None
            self._spoken = 0  # pushed samples of it that were played
            self._pushed_at = self._waits_since = 0.0
            self._draft = _Draft(np.zeros(self.clock.samples, np.float32))
            self._queue.clear()
            self._queued = 0
            self._cancelled = NONE_CANCELLED
            self._accounts.clear()
            self._unplayed.clear()
            self._again.clear()

    def push(self, response_id: int, pcm: np.ndarray) -> int:
        """Queue speech.

        Args:
            response_id: of the reply, not negative and not lower than any before it.
            pcm: float32 [n], mono at 24 kHz, any n.

        Returns:
            How many samples were taken: none if the response is cancelled, else as many as the queue of two minutes
            has room for. The caller may push the rest later.

        Raises:
            ValueError: not one-dimensional, not finite, or a negative response_id.
        """
        pcm = np.array(pcm, np.float32)  # a copy: the caller may reuse its buffer
        if pcm.ndim != 1 or not np.isfinite(pcm).all():
            raise ValueError("pcm must be one-dimensional and finite")
        if response_id < 0:
            raise ValueError("response_id must not be negative")
        with self._lock:
            if response_id <= self._cancelled:
                return 0
            pcm = pcm[: CAPACITY - self._queued]
            if len(pcm):
                self._pushed_at = self._now()
                if not self._queue:
                    self._waits_since = self._pushed_at
                self._queue.append((response_id, pcm))
                self._queued += len(pcm)
                self._account(response_id).pushed += len(pcm)
                self._changed.notify_all()
            return len(pcm)

    def cancel(self, response_id: int) -> None:
        """Response `response_id` and older ones are over: their sound is used in no later chunk."""
        with self._lock:
            self._cancelled = max(self._cancelled, response_id)
            kept = [(g, pcm) for g, pcm in self._queue if g > self._cancelled]
            self._queue = deque(kept)
            self._queued = sum(len(pcm) for _, pcm in kept)
            if self._draft.response_id != IDLE and self._draft.response_id <= self._cancelled:
                self._draft = _Draft(np.zeros(self.clock.samples, np.float32))
            self._changed.notify_all()

    def next(self) -> AudioChunk:
        """Decide on the next chunk, and on where what was issued before is cut."""
        with self._lock:
            if self.cuts:
                self._hush()
                if (at := self._cut_at()) is not None:
                    self._cut(at)
            while self._again:
                chunk = self._again.popleft()
                if chunk.response_id == IDLE or chunk.response_id > self._cancelled:
                    self._unplayed.append(chunk)
                    return chunk
            draft, following = self._draft, _Draft(np.zeros(self.clock.samples, np.float32))
            self._fill(draft, self.clock.samples)
            # What the model hears of the next chunk is decided on with this one.
            ahead = self._hearing.ahead
            self._fill(following, ahead)
            window = np.concatenate((self._past(), draft.pcm, following.pcm[:ahead]))
            piece = self._timeline.issue(self._index, self._now())
            chunk = AudioChunk(self._index, draft.response_id, draft.pcm, window, tuple(draft.pushed), piece.first)
            self._remember(chunk)
            self._draft = following
            self._index += 1
            self._unplayed.append(chunk)
        chunk.heard = self._hearing.hear(window)  # it takes long enough to make a frame late that waits for the lock
        return chunk

    def due(self) -> bool:
        """Whether the next chunk is to be decided on now."""
        if not self.cuts:
            return True
        with self._lock:
            if self._cut_at() is not None:
                return True
            # Sound that waits for the end of what is played goes there, and not behind the silence after it.
            return self._timeline.wants and not (self._queue and self._sound_ends() < self._timeline.end)

    def arrived(self, header: Header) -> None:
        """See `Playback.arrived`."""
        with self._lock:
            self._timeline.arrived(header)

    def frames(self, index: int) -> int:
        """See `Playback.frames`."""
        with self._lock:
            return self._timeline.frames(index) if self.cuts else self.clock.frames

    def goes_on(self, index: int, frame: int) -> bool:
        """See `Playback.goes_on`."""
        if not self.cuts:
            return True
        with self._lock:
            chunk = next((chunk for chunk in self._issued if chunk.index == index), None)
            heard = chunk is not None and not self._void(chunk)
            self._changed.notify_all()
            return self._timeline.goes_on(index, frame, heard)

    def played(self, index: int, samples: int) -> tuple[int, int] | None:
        """The first `samples` samples of chunk `index` went to the listener, so far.

        Returns:
            The chunk's response, and how many of its samples have been played in all; None if that has not grown.
        """
        with self._lock:
            while self._unplayed and self._unplayed[0].index <= index:
                self._playing, self._spoken = self._unplayed.popleft(), 0
            chunk = self._playing
            if chunk is None or chunk.index != index or (count := chunk.spoken(samples) - self._spoken) <= 0:
                return None
            self._spoken += count
            account = self._account(chunk.response_id)
            account.played += count
            return chunk.response_id, account.played

    def rewind(self) -> None:
        """Chunks that were issued but not played were lost: issue them, or their sound, again, before anything new."""
        with self._lock:
            if self.cuts:
                if self._timeline.pieces:
                    began = [piece for piece in self._timeline.pieces if piece.first < self._timeline.shown]
                    self._cut(began[-1].end if began else self._timeline.pieces[0].first)
                self._unplayed.clear()
                return
            self._again.extendleft(reversed(self._unplayed))
            self._unplayed.clear()

    def account(self, response_id: int) -> Account:
        """Samples of a response that were pushed and played; zeros for an unknown or an old response."""
        with self._lock:
            found = self._accounts.get(response_id)
            return Account(found.pushed, found.played) if found else Account()

    @property
    def queued(self) -> int:
        """Samples that wait to be played."""
        return self._queued

    def step(self, header: Header | None, inputs: Mapping[str, Tensor]) -> tuple[Header, dict[str, Tensor]]:
        """See `LoopRole.step`: ports "heard" and "pcm"."""
        with self._changed:
            while not self.due():
                if self._aborted:
                    raise ChannelAborted("the session's channels were aborted")
                self._changed.wait(_LOOK_EVERY)
        chunk = self.next()
        outputs = {"heard": torch.from_numpy(chunk.heard), "pcm": torch.from_numpy(chunk.pcm)}
        return Header(chunk.index, chunk.response_id, first=chunk.first, frames=self.clock.frames), outputs

    def connect(self, path: str) -> None:
        """See `LoopRole.connect`."""
        self._aborted = False

    def abort(self) -> None:
        """See `LoopRole.abort`."""
        with self._changed:
            self._aborted = True
            self._changed.notify_all()

    def resume(self) -> None:
        """See `LoopRole.resume`."""
        self.rewind()

    def snapshot(self) -> dict[str, Any]:
        """See `LoopRole.snapshot`. Queued sound dies with the process; the clock goes on."""
        with self._lock:
            return {"index": self._index, "first": self._timeline.end, "cancelled": self._cancelled}

    def restore(self, state: dict[str, Any]) -> None:
        """See `LoopRole.restore`."""
        with self._lock:
            self._index, self._cancelled = state["index"], state["cancelled"]
            self._timeline.end = self._timeline.shown = state["first"]

    def _account(self, response_id: int) -> Account:
        account = self._accounts.setdefault(response_id, Account())
        while len(self._accounts) > _ACCOUNTS:
            self._accounts.popitem(last=False)
        return account

    def _void(self, chunk: AudioChunk) -> bool:
        """Whether a chunk's response is over."""
        return chunk.response_id != IDLE and chunk.response_id <= self._cancelled

    def _cut_at(self) -> int | None:
        """Number of the frame at which what was issued is to be cut now; None for not at all."""
        timeline = self._timeline
        if not self.cuts or (horizon := timeline.horizon(self._now())) >= timeline.end:
            return None
        chunks = {chunk.index: chunk for chunk in self._issued}
        for piece in timeline.after(horizon):
            if self._void(chunks[piece.index]):
                return max(horizon, piece.first)
        if not self._queue or not self._enough():
            return None
        at = max(horizon, ends := self._sound_ends())
        # While there is sound to come that was issued, more may come that belongs in the same chunk.
        return at if at < timeline.end and ends <= horizon + 1 else None

    def _sound_ends(self) -> int:
        """Number of the frame at which the sound that waits can follow what was issued, at the earliest.

        It is the frame in which the same response ran out, so that it goes on without a gap, or that after another's.
        """
        ends, size = self._timeline.shown, self.clock.frame_samples
        chunks = {chunk.index: chunk for chunk in self._issued}
        for piece in self._timeline.pieces:
            chunk = chunks[piece.index]
            if (count := chunk.sounds(piece.frames * size)) and not self._void(chunk):
                same = chunk.response_id == self._queue[0][0]
                ends = max(ends, piece.first + (count // size if same else -(-count // size)))
        return ends

    def _enough(self) -> bool:
        """Whether the sound that waits is worth a chunk: it is as much as one holds, or no more comes at present."""
        now = self._now()
        return (
            self._queued >= self.clock.samples or now - self._pushed_at >= _GO or now - self._waits_since >= _PATIENCE
        )

    def _cut(self, at: int) -> None:
        """Show nothing of what was issued from frame number `at` on; its sound is queued again, or forgotten."""
        timeline, size = self._timeline, self.clock.frame_samples
        chunks, again = {chunk.index: chunk for chunk in self._issued}, list[tuple[int, np.ndarray]]()
        for piece in timeline.pieces:
            chunk, kept, shown = chunks[piece.index], max(0, at - piece.first) * size, piece.frames * size
            for start, stop in () if self._void(chunk) else chunk.pushed:
                if max(start, kept) < min(stop, shown):
                    again.append((chunk.response_id, chunk.pcm[max(start, kept) : min(stop, shown)]))
        self._tape = self._tape[: len(self._tape) - (timeline.end - at) * size]
        timeline.cut(at)
        self._queue.extendleft(reversed(again))
        self._queued += sum(len(pcm) for _, pcm in again)

    def _hush(self) -> None:
        """Sound of a response that is over was not played; the model hears silence there."""
        size = self.clock.frame_samples
        for piece in self._timeline.pieces:
            if any(chunk.index == piece.index and self._void(chunk) for chunk in self._issued):
                begin = len(self._tape) - (self._timeline.end - piece.first) * size
                self._tape[begin + piece.heard : begin + piece.frames * size] = 0

    def _past(self) -> np.ndarray:
        """float32 [past], what was played, or will have been, before the next chunk."""
        past = self._hearing.past
        return self._tape[len(self._tape) - past :]

    def _remember(self, chunk: AudioChunk) -> None:
        # Two chunks more than the model hears: what may still be cut away.
        kept = self._hearing.past + (3 * self.clock.samples if self.cuts else 0)
        self._tape = np.concatenate((self._tape, chunk.pcm))[-kept:]
        self._issued.append(chunk)
        oldest = self._timeline.pieces[0].index
        while self._issued[0].index < oldest:
            self._issued.popleft()
        if not self.cuts:
            self._timeline.pieces.clear()

    def _fill(self, draft: _Draft, stop: int) -> None:
        """Decide on a chunk's samples up to `stop`: sound of one response only, then silence."""
        start, draft.decided = draft.decided, stop
        while start < stop and self._queue:
            response_id, pcm = self._queue[0]
            if draft.response_id not in (IDLE, response_id):
                return
            count = min(stop - start, len(pcm))
            draft.pcm[start : start + count] = pcm[:count]
            draft.response_id = response_id
            draft.pushed.append((start, start + count))
            start += count
            self._queued -= count
            if count == len(pcm):
                self._queue.popleft()
            else:
                self._queue[0] = (response_id, pcm[count:])
