"""The voice bridge: the user's sound and typed text in, the character's voice and the conversation's events out.

A state machine in one event loop. `Listener` and `Transcriber` hear, this file decides, `Talker` thinks and speaks.
Listening is cheap and runs in place; transcription has a thread, the voice and the end-of-turn network share another.
Everything that is said carries a response id. When the user speaks up, the running response is cancelled within about
0.1 s, before it is known whether they mean to interrupt. After a "mm-hm" or a noise the character goes on from the word
that was cut, under a new response; anything else interrupts the reply, of which the history keeps what was heard.

To join it to a room: give the microphone's frames to `push_audio` and chat to `push_text`. Of the events, `ReplyAudio`
goes to the aligner and `Cancelled` to whatever drops a response. What the publisher has played goes to `report_played`,
without which nothing beyond `tts.lead_s` is said.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

import numpy as np

from actors.voice.backchannel import is_backchannel, may_answer
from actors.voice.config import VoiceConfig
from actors.voice.events import Backchannel, Event, TurnTrace, UserStartedSpeaking, UserText, UserTurn, VoiceError
from actors.voice.history import LONGEST_TEXT, History
from actors.voice.listener import Heard, Listener
from actors.voice.parts import Parts
from actors.voice.protocols import HEARING_RATE, Message, Tool, Transcript
from actors.voice.talker import Talker
from actors.voice.tasks import Tasks, WorkerThread
from actors.voice.transcriber import Transcriber
from actors.voice.turn import silence_needed, words_finished
from characters.character import Character
from characters.errors import UserError

log = logging.getLogger(__name__)

_GAP_SECONDS = 0.3  # without sound from the user (muted, gone) for so long, silence stands in for it
_WATCH_SECONDS = 0.1
_NOT_HEARD = "I'm sorry, something is wrong with my ears. Could you say that again, or type it?"


class VoiceBridge:
    """One user's conversation with one character. All methods belong to one event loop's thread.

    Args:
        character: who speaks.
        parts: from `actors.voice.parts.load_parts`; the language model and the VAD hold the state of one session.
        emit: called with each event, in order, in the event loop; must not block.
        config: as given to `load_parts`.
        clock: seconds; all times in events and traces are its.
    """

    def __init__(
        self,
        character: Character,
        parts: Parts,
        emit: Callable[[Event], None],
        config: VoiceConfig | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config or VoiceConfig()
        self._character, self._parts, self._emit, self._clock = character, parts, emit, clock
        self._tasks, self._stt_thread, self._tts_thread = Tasks(), WorkerThread("stt"), WorkerThread("tts")
        self._listener = Listener(self._config, parts.activity)
        # The judge may share the voice's thread: nothing is being said while it judges.
        self._transcriber = Transcriber(
            parts.stt, self._stt_thread, parts.end_of_turn, self._tts_thread, self._tasks, self._problem
        )
        self._history = History(self._config.history_messages)
        self._talker = Talker(
            character.persona,
            parts,
            self._config,
            self._history,
            self._tts_thread,
            self._tasks,
            emit,
            self._problem,
            clock,
        )
        self._anchor = (0, clock())  # a sample of the listener's clock and the time at which it came in
        self._last_push = clock()
        self._rate = HEARING_RATE
        self._turns = 0
        self._trace = TurnTrace(0)  # of the user's open turn
        self._hearing: asyncio.Task[None] | None = None
        self._verdict: tuple[str, int] | None = None  # the open turn's text, and the ms of silence that end it
        self._closed = False

    @property
    def history(self) -> list[Message]:
        """The conversation as both sides heard it."""
        return list(self._history.messages)

    @property
    def response_id(self) -> int:
        """Id of the newest reply; older ones are cancelled."""
        return self._talker.response_id

    @property
    def busy(self) -> bool:
        """Whether a transcription is under way, or a reply that has not been made as far ahead as it may."""
        hearing = self._hearing is not None and not self._hearing.done()
        return hearing or self._transcriber.busy or self._talker.busy

    def restore(self, history: Sequence[Message], response_id: int) -> None:
        """Before `start`: go on with a conversation that another bridge began; replies count from `response_id` on."""
        self._history.messages = list(history)
        self._talker.response_id = max(self._talker.response_id, response_id)

    def offer(self, tools: Sequence[Tool]) -> None:
        """From the next reply on, the language model may call these tools."""
        self._talker.tools = tuple(tools)

    async def start(self) -> None:
        """Warms the parts up and watches for gaps in the user's sound. A part that fails makes a `VoiceError`."""
        for stage, thread, warm in (
            ("stt", self._stt_thread, self._parts.warm_stt),
            ("tts", self._tts_thread, self._parts.warm_tts),
        ):
            try:
                await thread.run(warm)
            except UserError as error:
                self._problem(stage, error)
        self._tasks.spawn(self._parts.model.warm())
        self._tasks.spawn(self._watch())

    async def close(self) -> None:
        """Ends everything. What was running is cancelled; a computation under way ends in its thread, unheard."""
        self._closed = True
        await self._tasks.cancel()
        self._stt_thread.close()
        self._tts_thread.close()

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
        replying = self._talker.reply is not None and not self._talker.held
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
        """Takes a typed turn, which interrupts a running reply. Empty text is ignored."""
        text = " ".join(text[:LONGEST_TEXT].split())
        if not text or self._closed:
            return
        now = self._clock()
        self._talker.interrupt()
        self._turns += 1
        trace = TurnTrace(self._turns, speech_start=now, speech_end=now, decided=now)
        self._emit(UserTurn(self._turns, text, now, now, typed=True))
        self._answer(text, trace)

    def greet(self) -> None:
        """The character's greeting, as a reply of its own."""
        self.say(self._character.greeting)

    def say(self, text: str) -> None:
        """A line that is known beforehand, as a reply of its own, unless the character is replying already."""
        if text.strip() and self._talker.reply is None and not self._closed:
            self._reply(TurnTrace(0), text)

    def interrupt(self) -> None:
        """The user wants quiet: as if they had spoken up, without anything to answer."""
        self._talker.interrupt()

    def report_played(self, response_id: int, samples: int) -> None:
        """See `Talker.report_played`."""
        self._talker.report_played(response_id, samples)

    def _on_heard(self, heard: Heard) -> None:
        listener, limits, held = self._listener, self._config.barge_in, self._talker.held
        match heard:
            case Heard.ONSET:
                self._stop_hearing()
                self._transcriber.drop()
                onset = self._time(listener.onset)
                self._trace = TurnTrace(0, speech_start=onset)
                self._emit(UserStartedSpeaking(self._clock(), onset))
                self._talker.hold()
            case Heard.PAUSE:
                self._trace.speech_end = self._time(listener.voice_end)
                if held and listener.voiced_ms() < limits.noise_ms:
                    self._no_turn("")
                else:
                    self._hearing = self._tasks.spawn(self._hear(listener.sound(), self._trace))
            case Heard.AGAIN:
                self._stop_hearing()
            case Heard.FULL:
                self._stop_hearing()
                self._transcriber.add(listener.take())
            case Heard.TOO_LONG:
                self._trace.speech_end = self._time(listener.voice_end)
                self._stop_hearing()
                words = self._transcriber.finish(listener.sound())
                listener.close_turn()
                self._tasks.spawn(self._hear_last(words, self._trace))
            case Heard.WINDOW:
                if held and listener.voiced_ms() >= limits.confirm_ms:
                    self._talker.interrupt()
                self._end_if_silent()

    async def _hear(self, sound: np.ndarray, trace: TurnTrace) -> None:
        """Transcribes the turn so far and decides what silence would end it."""
        judged = self._transcriber.judge(sound)  # beside the transcription
        heard = await self._transcriber.transcript(sound)
        trace.stt_done = self._clock()
        if heard.text:
            self._emit(UserText(heard.text))
        if self._talker.held:
            if self._encourages(heard):
                self._no_turn(heard.text)
                return
            self._talker.interrupt()
        finished = None
        if judged is not None and words_finished(heard.text) is not False:
            finished = await judged
        self._verdict = (heard.text, silence_needed(finished, heard.text, self._config.turn))
        self._end_if_silent()

    async def _hear_last(self, words: asyncio.Task[Transcript], trace: TurnTrace) -> None:
        """Waits for the words of a turn that has been cut off at its longest."""
        text = (await words).text
        trace.stt_done = self._clock()
        if text:
            self._end(text, trace)
        elif self._talker.held and not self._listener.open:
            self._talker.resume()

    def _encourages(self, heard: Transcript) -> bool:
        """Whether the user only encourages the character to finish the reply that is held."""
        reply, limits = self._talker.reply, self._config.barge_in
        short = self._listener.voiced_ms() < limits.mumble_ms
        answers = may_answer(heard.text) and reply is not None and reply.left_ms() < limits.answer_ms
        return is_backchannel(heard, doubt=short) and not answers

    def _end_if_silent(self) -> None:
        """Ends the user's turn once it is understood and the silence after it is long enough."""
        if self._verdict is None or self._listener.silent_ms() < self._verdict[1]:
            return
        text = self._verdict[0]
        if text:
            self._close_turn()
            self._end(text, self._trace)
        else:
            self._no_turn("")
            if self._transcriber.failed and self._talker.reply is None:
                self._reply(self._trace, _NOT_HEARD)
            self._transcriber.failed = False

    def _end(self, text: str, trace: TurnTrace) -> None:
        """The user's turn is over: the character answers it."""
        self._talker.interrupt()  # a reply to a typed turn, or one that went on under a very long turn
        self._turns += 1
        trace.turn, trace.decided = self._turns, self._clock()
        self._emit(UserTurn(self._turns, text, trace.speech_start or 0.0, trace.speech_end or 0.0))
        self._answer(text, trace)

    def _no_turn(self, text: str) -> None:
        """What was heard was no turn: the character goes on with what it was saying."""
        self._close_turn()
        self._emit(Backchannel(text))
        if self._talker.held:
            self._talker.resume()

    def _close_turn(self) -> None:
        self._listener.close_turn()
        self._transcriber.forget()
        self._verdict = None

    def _stop_hearing(self) -> None:
        """There is more to hear: the decision about the turn so far is void."""
        self._verdict = None
        if self._hearing is not None:
            self._hearing.cancel()
            self._hearing = None

    def _answer(self, text: str, trace: TurnTrace) -> None:
        self._history.add_user(text)
        self._reply(trace)

    def _reply(self, trace: TurnTrace, text: str | None = None) -> None:
        self._talker.start(trace, text)
        if self._listener.open:  # the user is speaking, and may yet interrupt
            self._talker.hold()

    async def _watch(self) -> None:
        """A muted microphone sends nothing at all: silence stands in, or an open turn would never end."""
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            gap = self._clock() - self._last_push
            if self._listener.open and gap > _GAP_SECONDS:
                self.push_audio(np.zeros(int(min(gap, 1.0) * self._rate), np.float32), self._rate)

    def _time(self, sample: int) -> float:
        """When a sample of the listener's clock came in."""
        return self._anchor[1] - (self._anchor[0] - sample) / HEARING_RATE

    def _problem(self, stage: str, error: Exception) -> None:
        if not isinstance(error, UserError):
            log.error("%s failed", stage, exc_info=error)
        self._emit(VoiceError(stage, " ".join(f"{error}".split()) or type(error).__name__))
