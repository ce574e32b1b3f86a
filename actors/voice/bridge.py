"""The voice bridge: the user's sound and typed text in, the character's voice and the conversation's events out.

A state machine in one event loop. Listening (`Listener`) is cheap and runs in place; transcription and the end-of-turn
network share one worker thread, the voice has another. Everything that is said carries a response id. When the user
speaks up, the running response_id is cancelled within about 0.1 s, before it is known whether they mean to interrupt:
a "mm-hm" or a noise makes the character go on from the word it was in, under a new response; anything else makes
it an interruption, of which the history keeps what was heard.

To be joined to a room: the microphone's frames go to `push_audio`, chat to `push_text`; of the events, `ReplyAudio`
goes to the aligner and `Cancelled` to whatever drops a response; what the publisher has played goes to
`report_played`, without which nothing beyond `tts.lead_s` is said.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import Any, TypeVar

import numpy as np

from actors.voice.backchannel import is_backchannel, may_answer
from actors.voice.clauses import ClauseSplitter
from actors.voice.config import VoiceConfig
from actors.voice.events import (
    Backchannel,
    Cancelled,
    Event,
    Interrupted,
    ReplyHeard,
    ReplyMade,
    ReplyStarted,
    ReplyText,
    TurnDone,
    TurnTrace,
    UserStartedSpeaking,
    UserText,
    UserTurn,
    VoiceError,
)
from actors.voice.listener import Heard, Listener
from actors.voice.llm import converse
from actors.voice.parts import Parts
from actors.voice.protocols import HEARING_RATE, EndOfTurn, Message, Tool, Transcript
from actors.voice.reply import Reply
from actors.voice.turn import silence_needed, words_finished
from characters.character import Character
from characters.chunk import SAMPLE_RATE
from characters.errors import UserError

log = logging.getLogger(__name__)

T = TypeVar("T")

LONGEST_TEXT = 4_000  # characters of a typed turn that are read
_GAP_SECONDS = 0.3  # without sound from the user (muted, gone) for so long, silence stands in for it
_WATCH_SECONDS = 0.1
_APOLOGY = "I'm sorry, I lost my train of thought. Could you say that again?"
_NOT_HEARD = "I'm sorry, something is wrong with my ears. Could you say that again, or type it?"
_STYLE = (
    "You speak aloud in a video call: answer in one to three short sentences of plain spoken English, without lists, "
    "emoji or markup. If asked, say truthfully that you are an AI character."
)


class VoiceBridge:
    """One user's conversation with one character. All methods belong to one event loop's thread."""

    def __init__(
        self,
        character: Character,
        parts: Parts,
        emit: Callable[[Event], None],
        config: VoiceConfig | None = None,
        tools: Sequence[Tool] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args:
        character: who speaks.
        parts: from `actors.voice.parts.open_parts`; the language model and the VAD hold the state of one session.
        emit: called with each event, in order, in the event loop; must not block.
        config: as given to `open_parts`.
        tools: what the language model may call.
        clock: seconds; all times in events and traces are its.
        """
        self._config = config or VoiceConfig()
        self._character = character
        self._parts = parts
        self._emit = emit
        self._tools = tuple(tools)
        self._clock = clock
        self._listener = Listener(self._config, parts.activity)
        self._stt_executor = ThreadPoolExecutor(1, "stt")
        self._tts_executor = ThreadPoolExecutor(1, "tts")
        self._tasks: set[asyncio.Task[Any]] = set()
        self._anchor = (0, clock())  # a sample of the listener's clock and the time at which it came in
        self._last_push = clock()
        self._rate = HEARING_RATE
        self._response_id = 0
        self._turns = 0
        self._reply: Reply | None = None
        self._cut: tuple[Reply, Message] | None = None  # the last interrupted reply, and what is remembered of it
        self._history: list[Message] = []
        self._unanswered = False  # the newest user message has not been answered audibly
        self._trace = TurnTrace(0)
        self._hearing: asyncio.Task[None] | None = None
        self._prefix: list[asyncio.Task[Transcript]] = []  # transcripts of earlier stretches of a long turn
        self._verdict: tuple[str, int] | None = None  # the turn's text, and the silence that ends it
        self._deaf = False  # the last transcription failed
        self._closed = False

    @property
    def history(self) -> list[Message]:
        """The conversation as both sides heard it."""
        return list(self._history)

    @property
    def response_id(self) -> int:
        """Id of the newest reply; older ones are cancelled."""
        return self._response_id

    @property
    def busy(self) -> bool:
        """Whether a transcription is under way, or a reply that has not been made as far ahead as it may."""
        making = self._reply is not None and not self._reply.complete and not self._ahead(self._reply)
        return making or any(not t.done() for t in (self._hearing, *self._prefix) if t is not None)

    def restore(self, history: Sequence[Message], response_id: int) -> None:
        """Before `start`: go on with a conversation that another bridge began; replies count from `response_id` on."""
        self._history = list(history)
        self._response_id = max(self._response_id, response_id)

    async def start(self) -> None:
        """Warm the parts up and watch for gaps in the user's sound. A part that fails makes a `VoiceError`."""
        for stage, pool, warm in (
            ("stt", self._stt_executor, self._parts.warm_stt),
            ("tts", self._tts_executor, self._parts.warm_tts),
        ):
            try:
                await self._work(pool, warm)
            except UserError as error:
                self._problem(stage, error)
        self._spawn(self._watch())

    async def close(self) -> None:
        """Ends everything. What was running is cancelled; a computation under way ends in its thread, unheard."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._stt_executor.shutdown(wait=False, cancel_futures=True)
        self._tts_executor.shutdown(wait=False, cancel_futures=True)

    # The user's side.

    def push_audio(self, pcm: np.ndarray, rate: int) -> None:
        """Takes the next stretch of the user's sound, at best 10 to 30 ms of it.

        Args:
            pcm: int16 or float [n] or [n, channels], full scale 32768 or 1.0.
            rate: Hz; 16000, 24000, 44100 and 48000 are usual.

        Raises:
            UserError: sound of another type, or a rate that cannot be heard.
        """
        if self._closed:
            return
        replying = self._reply is not None and not self._reply.held
        self._listener.onset_ms = (
            self._config.barge_in.min_interruption_duration_ms if replying else self._config.vad.onset_ms
        )
        windows = self._listener.push(pcm, rate)
        self._rate, self._last_push = rate, self._clock()
        self._anchor = (self._listener.taken, self._last_push)
        for window in windows:
            for heard in self._listener.judge(window):
                self._on_heard(heard)

    def push_text(self, text: str) -> None:
        """Takes a typed turn. It interrupts whatever is being said. Empty text is ignored."""
        text = " ".join(text[:LONGEST_TEXT].split())
        if not text or self._closed:
            return
        now = self._clock()
        if self._reply is not None:
            self._hold()
            self._interrupt()
        self._turns += 1
        trace = TurnTrace(self._turns, speech_start=now, speech_end=now, decided=now)
        self._emit(UserTurn(self._turns, text, now, now, typed=True))
        self._answer(text, trace)

    def _on_heard(self, heard: Heard) -> None:
        listener, now = self._listener, self._clock()
        match heard:
            case Heard.ONSET:
                self._drop_hearing()
                self._trace = TurnTrace(0, speech_start=self._time(listener.onset))
                self._emit(UserStartedSpeaking(now, self._time(listener.onset)))
                if self._reply is not None:
                    self._hold()
            case Heard.PAUSE:
                self._trace.speech_end = self._time(listener.voice_end)
                if self._held() and listener.voiced_ms() < self._config.barge_in.noise_ms:
                    self._no_turn("")
                else:
                    self._hearing = self._spawn(self._hear(listener.sound(), self._trace))
            case Heard.AGAIN:
                self._stop_hearing()
            case Heard.FULL:
                self._stop_hearing()
                self._prefix.append(self._spawn(self._transcribe(listener.take())))
            case Heard.TOO_LONG:
                self._trace.speech_end = self._time(listener.voice_end)
                self._stop_hearing()
                prefix, self._prefix = self._prefix, []
                sound = listener.sound()
                listener.close_turn()
                self._spawn(self._hear_last(prefix, sound, self._trace))
            case Heard.WINDOW:
                if self._held() and listener.voiced_ms() >= self._config.barge_in.confirm_ms:
                    self._interrupt()
                self._maybe_end()

    async def _hear(self, sound: np.ndarray, trace: TurnTrace) -> None:
        """Transcribes the turn so far and judges whether it is over."""
        judge = self._parts.end_of_turn
        # Beside the transcription, in the other thread: nothing is being said now.
        judged = None if judge is None else self._spawn(self._judge(judge, sound))
        heard = await self._join(self._prefix, sound)
        text = heard.text
        trace.stt_done = self._clock()
        if text:
            self._emit(UserText(text))
        if self._reply is not None and self._reply.held:
            limits = self._config.barge_in
            short = self._listener.voiced_ms() < limits.mumble_ms
            answers = may_answer(text) and self._reply.left_ms() < limits.answer_ms
            if is_backchannel(heard, doubt=short) and not answers:
                self._no_turn(text)
                return
            self._interrupt()
        sound_says = None
        if judged is not None and words_finished(text) is not False:
            sound_says = await judged
        self._verdict = (text, silence_needed(sound_says, text, self._config.turn))
        self._maybe_end()

    async def _hear_last(self, prefix: list[asyncio.Task[Transcript]], sound: np.ndarray, trace: TurnTrace) -> None:
        """Transcribes a turn that has been cut off at its longest."""
        text = (await self._join(prefix, sound)).text
        trace.stt_done = self._clock()
        if text:
            self._end(text, trace)
        elif self._held() and not self._listener.open:
            self._resume()

    async def _join(self, prefix: list[asyncio.Task[Transcript]], sound: np.ndarray) -> Transcript:
        """The transcript of a turn of which the beginning is in transcription already."""
        parts = [*[await asyncio.shield(part) for part in prefix], await self._transcribe(sound)]
        return Transcript(" ".join(p.text for p in parts if p.text), parts[-1].confidence)

    async def _judge(self, judge: EndOfTurn, sound: np.ndarray) -> float | None:
        """The judgement by sound; None and a `VoiceError` if it fails."""
        try:
            return await self._work(self._tts_executor, judge.probability, sound)
        except Exception as error:  # the words and the silence are enough to go on with
            self._problem("turn", error)
            return None

    async def _transcribe(self, sound: np.ndarray) -> Transcript:
        """The text of float32 [n] at 16 kHz; "" and a `VoiceError` if the engine fails."""
        try:
            return await self._work(self._stt_executor, self._parts.stt.transcribe, sound)
        except Exception as error:  # whatever an engine raises, the conversation goes on
            self._problem("stt", error)
            self._deaf = True
            return Transcript("")

    def _maybe_end(self) -> None:
        if self._verdict is None or self._listener.silent_ms() < self._verdict[1]:
            return
        text = self._verdict[0]
        if text:
            self._listener.close_turn()
            self._verdict, self._prefix = None, []
            self._end(text, self._trace)
        else:
            self._no_turn("")
            if self._deaf and self._reply is None:
                self._start_reply(self._trace, _NOT_HEARD)
            self._deaf = False

    def _end(self, text: str, trace: TurnTrace) -> None:
        """The user's turn is over."""
        if self._reply is not None:  # one to a typed turn, or one that went on under a very long one
            self._hold()
            self._interrupt()
        self._turns += 1
        trace.turn, trace.decided = self._turns, self._clock()
        self._emit(UserTurn(self._turns, text, trace.speech_start or 0.0, trace.speech_end or 0.0))
        self._answer(text, trace)

    def _no_turn(self, text: str) -> None:
        """What was heard was no turn: the character goes on with what it was saying."""
        self._listener.close_turn()
        self._verdict, self._prefix = None, []
        self._emit(Backchannel(text))
        if self._held():
            self._resume()

    def _stop_hearing(self) -> None:
        """The judgement under way is void: there is more to hear."""
        self._verdict = None
        if self._hearing is not None:
            self._hearing.cancel()
            self._hearing = None

    def _drop_hearing(self) -> None:
        self._stop_hearing()
        for task in self._prefix:
            task.cancel()
        self._prefix = []

    async def _watch(self) -> None:
        """A muted microphone sends nothing at all: silence stands in, or an open turn would never end."""
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            gap = self._clock() - self._last_push
            if self._listener.open and gap > _GAP_SECONDS:
                self.push_audio(np.zeros(int(min(gap, 1.0) * self._rate), np.float32), self._rate)

    # The character's side.

    def greet(self) -> None:
        """The character's greeting, as a reply of its own."""
        self.say(self._character.greeting)

    def say(self, text: str) -> None:
        """A line that is known beforehand, as a reply of its own, unless the character is speaking already."""
        if text.strip() and self._reply is None and not self._closed:
            self._start_reply(TurnTrace(0), text)

    def interrupt(self) -> None:
        """The user wants quiet: as if they had spoken up, without anything to answer."""
        if self._reply is not None:
            self._hold()
            self._interrupt()

    def report_played(self, response_id: int, samples: int) -> None:
        """How much of a response the user has heard, at 24 kHz from its start; late and repeated reports are fine."""
        reply = self._reply
        if self._cut is not None and self._cut[0].response_id == response_id:
            self._amend(*self._cut, samples)
        if reply is None or reply.response_id != response_id or samples <= reply.played - reply.base:
            return
        if reply.trace.first_heard is None:
            reply.trace.first_heard = self._clock()
            self._unanswered = False
            self._emit(TurnDone(reply.trace))
        reply.played = min(reply.base + samples, reply.made)
        reply.room.set()
        count = reply.heard_words()
        if count > reply.shown:
            reply.shown = count
            self._emit(ReplyText(response_id, reply.heard_text(), final=False))
        if reply.complete and reply.played >= reply.made:
            self._finish(reply)

    def _answer(self, text: str, trace: TurnTrace) -> None:
        """Replies to what the user said."""
        newest = self._history[-1] if self._history else None
        if self._unanswered and newest is not None and newest.role == "user":
            # The user spoke on before anything was answered: to both of us it was one turn.
            self._history[-1] = Message("user", f"{newest.text} {text}")
        else:
            self._remember(Message("user", text))
        self._unanswered = True
        self._start_reply(trace)

    def _start_reply(self, trace: TurnTrace, text: str | None = None) -> None:
        """Begins a reply: to the history, or (`text`) one that is known."""
        self._response_id += 1
        reply = Reply(self._response_id, trace)
        self._reply = reply
        self._emit(ReplyStarted(reply.response_id, trace.turn))
        reply.task = self._spawn(self._make(reply, text))
        if self._listener.open:  # the user is speaking: it will be seen whether to go on with this
            self._hold()

    async def _make(self, reply: Reply, text: str | None) -> None:
        """Thinks the reply up and speaks it, clause by clause."""
        try:
            if text is None:
                await self._think(reply)
            else:
                await self._say(reply, text, ClauseSplitter(), last=True)
            if not reply.made and self._reply is reply:
                raise UserError("the reply has no words")
        except Exception as error:  # whatever a model or an engine raises, the conversation goes on
            self._problem("reply", error)
            try:
                reply.add(await self._work(self._tts_executor, self._parts.speaker.say, _APOLOGY))
            except Exception as second:
                self._problem("tts", second)
        reply.complete = True
        self._hand_on(reply)
        if reply.played >= reply.made and not reply.held:
            self._finish(reply)

    async def _think(self, reply: Reply) -> None:
        splitter = ClauseSplitter()
        messages = [Message("system", f"{self._character.persona.strip()}\n{_STYLE}".strip()), *self._history]
        thoughts = converse(self._parts.model, messages, self._tools, self._config.llm.tool_rounds)
        async with aclosing(thoughts) as pieces:  # type: ignore[type-var]
            async for piece in pieces:
                if reply.trace.first_token is None and piece.strip():
                    reply.trace.first_token = self._clock()
                await self._say(reply, piece, splitter)
        await self._say(reply, "", splitter, last=True)

    async def _say(self, reply: Reply, text: str, splitter: ClauseSplitter, last: bool = False) -> None:
        """Speaks the clauses that `text` completes, waiting while there is enough made already."""
        clauses = splitter.push(text)
        for clause in clauses + (splitter.flush() if last else []):
            while self._ahead(reply):
                reply.room.clear()
                await reply.room.wait()
            reply.add(await self._work(self._tts_executor, self._parts.speaker.say, clause))
            self._hand_on(reply)

    def _ahead(self, reply: Reply) -> bool:
        return reply.made - reply.played > self._config.tts.lead_s * SAMPLE_RATE

    def _hand_on(self, reply: Reply) -> None:
        """Emits what was made, unless the reply is held."""
        if reply.held or self._reply is not reply:
            return
        for audio in reply.unsent():
            if reply.trace.first_pcm is None:
                reply.trace.first_pcm = self._clock()
            self._emit(audio)
        if reply.complete and not reply.announced:
            reply.announced = True
            self._emit(ReplyMade(reply.response_id, reply.made - reply.base))

    def _held(self) -> bool:
        return self._reply is not None and self._reply.held

    def _hold(self) -> None:
        """Cancels the reply's response_id; what becomes of the reply is seen later."""
        reply = self._reply
        if reply is not None and not reply.held:
            reply.held = True
            self._emit(Cancelled(reply.response_id, self._clock()))

    def _resume(self) -> None:
        """The held reply goes on under a new response."""
        reply = self._reply
        assert reply is not None
        if reply.complete and reply.played >= reply.made:
            self._finish(reply)
            return
        old = reply.response_id
        self._response_id += 1
        reply.rewind(self._response_id)
        self._emit(ReplyStarted(reply.response_id, reply.trace.turn, resumes=old))
        self._hand_on(reply)

    def _interrupt(self) -> None:
        """The reply is over: model and voice are cancelled, and only what was heard is remembered."""
        reply, self._reply = self._reply, None
        assert reply is not None
        if reply.task is not None:
            reply.task.cancel()
        heard = reply.heard_text()
        self._cut = None
        if heard:
            message = Message("assistant", heard)
            self._remember(message)
            self._cut = (reply, message)
        self._emit(ReplyText(reply.response_id, heard, final=True))
        self._emit(Interrupted(reply.response_id, heard))

    def _amend(self, reply: Reply, message: Message, samples: int) -> None:
        """A report that came after the interruption: the user had heard a little more."""
        reply.played = max(reply.played, min(reply.base + samples, reply.made))
        amended = Message("assistant", reply.heard_text())
        self._history = [amended if m is message else m for m in self._history]
        self._cut = (reply, amended)

    def _finish(self, reply: Reply) -> None:
        """The reply has been heard to its end."""
        self._reply = None
        if text := reply.text():
            self._remember(Message("assistant", text))
        self._unanswered = False
        self._emit(ReplyText(reply.response_id, text, final=True))
        self._emit(ReplyHeard(reply.response_id, text))

    def _remember(self, message: Message) -> None:
        self._history.append(message)
        del self._history[: -self._config.history_turns]

    # Plumbing.

    def _time(self, sample: int) -> float:
        """When a sample of the listener's clock came in."""
        return self._anchor[1] - (self._anchor[0] - sample) / HEARING_RATE

    def _problem(self, stage: str, error: Exception) -> None:
        if not isinstance(error, UserError):
            log.error("%s failed", stage, exc_info=error)
        self._emit(VoiceError(stage, " ".join(f"{error}".split()) or type(error).__name__))

    async def _work(self, pool: ThreadPoolExecutor, function: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(pool, function, *args)

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the voice bridge failed", exc_info=error)
