"""The session's clock: cuts speech into chunks, with silence where nobody speaks, and computes what the model hears."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from actors.pipeline.header import IDLE, NONE_CANCELLED, Header
from actors.pipeline.loop import LoopRole
from characters.chunk import SAMPLE_RATE, Clock
from characters.generate.hearing import Hearing

# Samples that may wait to be played. Speech is made faster than it is played, and a reply can be long.
CAPACITY = 120 * SAMPLE_RATE
# Responses whose accounts are kept.
_ACCOUNTS = 64


@dataclass(frozen=True, slots=True)
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

    Args:
        clock: of the model.
        hearing: of the model.
    """

    def __init__(self, clock: Clock, hearing: Hearing) -> None:
        self.clock, self._hearing = clock, hearing
        self._lock = threading.RLock()
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
            self._index = self._first = 0
            self._history = np.zeros(self._hearing.past, np.float32)
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
                self._queue.append((response_id, pcm))
                self._queued += len(pcm)
                self._account(response_id).pushed += len(pcm)
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

    def next(self) -> AudioChunk:
        """Decide on the next chunk."""
        with self._lock:
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
            heard = self._hearing.hear(np.concatenate((self._history, draft.pcm, following.pcm[:ahead])))
            chunk = AudioChunk(self._index, draft.response_id, draft.pcm, heard, tuple(draft.pushed), self._first)
            self._history = np.concatenate((self._history, draft.pcm))[-self._hearing.past :]
            self._draft = following
            self._index += 1
            self._first += self.clock.frames
            self._unplayed.append(chunk)
            return chunk

    def played(self, index: int, samples: int) -> tuple[int, int] | None:
        """The first `samples` samples of chunk `index` went to the listener, and the chunk is over.

        Returns:
            The chunk's response, and how many of its samples have been played in all; None if that has not grown.
        """
        report: tuple[int, int] | None = None
        with self._lock:
            while self._unplayed and self._unplayed[0].index <= index:
                chunk = self._unplayed.popleft()
                if chunk.index == index and (count := chunk.spoken(samples)):
                    account = self._account(chunk.response_id)
                    account.played += count
                    report = chunk.response_id, account.played
        return report

    def rewind(self) -> None:
        """Chunks that were issued but not played were lost: issue them again, before anything new."""
        with self._lock:
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
        chunk = self.next()
        outputs = {"heard": torch.from_numpy(chunk.heard), "pcm": torch.from_numpy(chunk.pcm)}
        return Header(chunk.index, chunk.response_id, first=chunk.first, frames=self.clock.frames), outputs

    def resume(self) -> None:
        """See `LoopRole.resume`."""
        self.rewind()

    def snapshot(self) -> dict[str, Any]:
        """See `LoopRole.snapshot`. Queued sound dies with the process; the clock goes on."""
        with self._lock:
            return {"index": self._index, "first": self._first, "cancelled": self._cancelled}

    def restore(self, state: dict[str, Any]) -> None:
        """See `LoopRole.restore`."""
        with self._lock:
            self._index, self._first, self._cancelled = state["index"], state["first"], state["cancelled"]

    def _account(self, response_id: int) -> Account:
        account = self._accounts.setdefault(response_id, Account())
        while len(self._accounts) > _ACCOUNTS:
            self._accounts.popitem(last=False)
        return account

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
