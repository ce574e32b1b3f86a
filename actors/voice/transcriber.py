"""The sound of the user's open turn -> its words, and a judgement by sound whether the turn is over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np

from actors.voice.protocols import EndOfTurn, SpeechToText, Transcript
from actors.voice.tasks import Tasks, WorkerThread


class Transcriber:
    """Transcribes one turn at a time; a long one in stretches, as it goes on. Sound is float32 [n] at 16 kHz.

    An engine that fails makes a `problem`; what it should have understood is missing.

    Args:
        stt: understands sound, in `stt_thread`.
        end_of_turn: judges sound, in `judge_thread`; None without such a judge.
        tasks: of the bridge.
        problem: called with the name of the part that failed, and its error.

    Attributes:
        failed: whether a transcription has failed since this was last set to False.
    """

    def __init__(
        self,
        stt: SpeechToText,
        stt_thread: WorkerThread,
        end_of_turn: EndOfTurn | None,
        judge_thread: WorkerThread,
        tasks: Tasks,
        problem: Callable[[str, Exception], None],
    ) -> None:
        self.failed = False
        self._stt, self._stt_thread = stt, stt_thread
        self._end_of_turn, self._judge_thread = end_of_turn, judge_thread
        self._tasks, self._problem = tasks, problem
        self._stretches: list[asyncio.Task[Transcript]] = []  # of the open turn, but for its end

    @property
    def busy(self) -> bool:
        """Whether a stretch is being transcribed."""
        return any(not stretch.done() for stretch in self._stretches)

    def add(self, sound: np.ndarray) -> None:
        """The next stretch of the open turn, which goes on after it."""
        self._stretches.append(self._tasks.spawn(self._transcribe(sound)))

    async def transcript(self, sound: np.ndarray) -> Transcript:
        """The words of the stretches so far and of `sound`, which follows them. Cancelling it keeps the stretches."""
        return await self._join(self._stretches, sound)

    def finish(self, sound: np.ndarray) -> asyncio.Task[Transcript]:
        """As `transcript`, for a turn that ends here: the next stretch belongs to another."""
        task = self._tasks.spawn(self._join(self._stretches, sound))
        self.forget()
        return task

    def judge(self, sound: np.ndarray) -> asyncio.Task[float | None] | None:
        """Starts judging the turn so far: the probability that it is over, None if the judge fails."""
        return None if self._end_of_turn is None else self._tasks.spawn(self._judge(self._end_of_turn, sound))

    def forget(self) -> None:
        """The turn is over: the next stretch belongs to another."""
        self._stretches = []

    def drop(self) -> None:
        """As `forget`, and nobody needs the words."""
        for stretch in self._stretches:
            stretch.cancel()
        self.forget()

    async def _join(self, stretches: list[asyncio.Task[Transcript]], sound: np.ndarray) -> Transcript:
        parts = [*[await asyncio.shield(stretch) for stretch in stretches], await self._transcribe(sound)]
        return Transcript(" ".join(part.text for part in parts if part.text), parts[-1].confidence)

    async def _transcribe(self, sound: np.ndarray) -> Transcript:
        try:
            return await self._stt_thread.run(self._stt.transcribe, sound)
        except Exception as error:  # whatever an engine raises, the conversation goes on
            self._problem("stt", error)
            self.failed = True
            return Transcript("")

    async def _judge(self, end_of_turn: EndOfTurn, sound: np.ndarray) -> float | None:
        try:
            return await self._judge_thread.run(end_of_turn.probability, sound)
        except Exception as error:  # the words and the silence are enough to go on with
            self._problem("turn", error)
            return None
