"""The character's side of the conversation: thinks replies up, speaks them, and knows what was heard of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing

from actors.voice.config import VoiceConfig
from actors.voice.events import (
    Cancelled,
    Event,
    Interrupted,
    ReplyHeard,
    ReplyMade,
    ReplyStarted,
    ReplyText,
    TurnDone,
    TurnTrace,
)
from actors.voice.history import History
from actors.voice.llm import converse
from actors.voice.parts import Parts
from actors.voice.protocols import Message, Tool
from actors.voice.reply import Reply
from actors.voice.tasks import Tasks, WorkerThread
from characters.chunk import SAMPLE_RATE
from characters.errors import UserError
from characters.speech.clauses import ClauseSplitter

_APOLOGY = "I'm sorry, I lost my train of thought. Could you say that again?"
_STYLE = (
    "You speak aloud in a video call: answer in one to three short sentences of plain spoken English, without lists, "
    "emoji or markup. If asked, say truthfully that you are an AI character."
)


class Talker:
    """Gives one reply at a time. A running reply can be held, then resumed or interrupted.

    Args:
        persona: what the language model is told of the character.
        parts: of the voice bridge.
        config: as given to the parts.
        history: replies are to its newest message, and are added as far as they were heard.
        thread: for the voice.
        tasks: of the bridge.
        emit: takes each event.
        problem: called with the name of the part that failed, and its error.
        clock: seconds.

    Attributes:
        reply: that is being given; None while the character has nothing to say.
        response_id: of the newest reply; older ones are cancelled.
        tools: what the language model may call.
    """

    def __init__(
        self,
        persona: str,
        parts: Parts,
        config: VoiceConfig,
        history: History,
        thread: WorkerThread,
        tasks: Tasks,
        emit: Callable[[Event], None],
        problem: Callable[[str, Exception], None],
        clock: Callable[[], float],
    ) -> None:
        self.reply: Reply | None = None
        self.response_id = 0
        self._instructions = Message("system", f"{persona.strip()}\n{_STYLE}".strip())
        self._parts, self._config = parts, config
        self.tools: tuple[Tool, ...] = ()
        self._history, self._thread, self._tasks = history, thread, tasks
        self._emit, self._problem, self._clock = emit, problem, clock
        self._interrupted: tuple[Reply, Message] | None = None  # the last one, and what is remembered of it

    @property
    def held(self) -> bool:
        """Whether a reply is held."""
        return self.reply is not None and self.reply.held

    @property
    def busy(self) -> bool:
        """Whether a reply is being given that has not been made as far ahead as it may."""
        return self.reply is not None and not self.reply.complete and not self._far_ahead(self.reply)

    def start(self, trace: TurnTrace, text: str | None = None) -> None:
        """Begins a reply to the history, or one whose text is known. No other reply must be running."""
        self.response_id += 1
        reply = self.reply = Reply(self.response_id, trace)
        self._emit(ReplyStarted(reply.response_id, trace.turn))
        reply.task = self._tasks.spawn(self._make(reply, text))

    def hold(self) -> None:
        """Cancels the response of the running reply, if there is one; `resume` or `interrupt` is to follow."""
        reply = self.reply
        if reply is not None and not reply.held:
            reply.held = True
            self._emit(Cancelled(reply.response_id, self._clock()))

    def resume(self) -> None:
        """The held reply goes on under a new response."""
        reply = self.reply
        assert reply is not None
        if reply.complete and reply.played >= reply.made:
            self._finish(reply)
            return
        cancelled = reply.response_id
        self.response_id += 1
        reply.rewind(self.response_id)
        self._emit(ReplyStarted(reply.response_id, reply.trace.turn, resumes=cancelled))
        self._hand_on(reply)

    def interrupt(self) -> None:
        """The running reply is over, if there is one: no more of it is made, and only what was heard is remembered."""
        self.hold()
        reply, self.reply = self.reply, None
        if reply is None:
            return
        if reply.task is not None:
            reply.task.cancel()
        heard = reply.heard_text()
        self._interrupted = (reply, self._history.add_character(heard)) if heard else None
        self._emit(ReplyText(reply.response_id, heard, final=True))
        self._emit(Interrupted(reply.response_id, heard))

    def report_played(self, response_id: int, samples: int) -> None:
        """How much of a response the user has heard, at 24 kHz from its start; late and repeated reports are fine."""
        if self._interrupted is not None and self._interrupted[0].response_id == response_id:
            self._amend(*self._interrupted, samples)
        reply = self.reply
        if reply is None or reply.response_id != response_id or samples <= reply.played - reply.base:
            return
        if reply.trace.first_heard is None:
            reply.trace.first_heard = self._clock()
            self._history.answered()
            self._emit(TurnDone(reply.trace))
        reply.played = min(reply.base + samples, reply.made)
        reply.wanted.set()
        count = reply.heard_words()
        if count > reply.captioned:
            reply.captioned = count
            self._emit(ReplyText(response_id, reply.heard_text(), final=False))
        if reply.complete and reply.played >= reply.made:
            self._finish(reply)

    async def _make(self, reply: Reply, text: str | None) -> None:
        """Thinks the reply up and speaks it, clause by clause."""
        try:
            if text is None:
                await self._think(reply)
            else:
                await self._say(reply, text, ClauseSplitter(), last=True)
            if not reply.made and self.reply is reply:
                raise UserError("the reply has no words")
        except Exception as error:  # whatever a model or an engine raises, the conversation goes on
            self._problem("reply", error)
            try:
                reply.add(await self._thread.run(self._parts.speaker.say, _APOLOGY))
            except Exception as second:
                self._problem("tts", second)
        reply.complete = True
        self._hand_on(reply)
        if reply.played >= reply.made and not reply.held:
            self._finish(reply)

    async def _think(self, reply: Reply) -> None:
        splitter = ClauseSplitter()
        messages = [self._instructions, *self._history.messages]
        thoughts = converse(self._parts.model, messages, self.tools, self._config.llm.tool_rounds)
        async with aclosing(thoughts) as pieces:  # type: ignore[type-var]
            async for piece in pieces:
                if reply.trace.first_token is None and piece.strip():
                    reply.trace.first_token = self._clock()
                await self._say(reply, piece, splitter)
        await self._say(reply, "", splitter, last=True)

    async def _say(self, reply: Reply, text: str, splitter: ClauseSplitter, last: bool = False) -> None:
        """Speaks the clauses that `text` completes, and waits while enough has been made ahead."""
        clauses = splitter.push(text)
        for clause in clauses + (splitter.flush() if last else []):
            while self._far_ahead(reply):
                reply.wanted.clear()
                await reply.wanted.wait()
            reply.add(await self._thread.run(self._parts.speaker.say, clause))
            self._hand_on(reply)

    def _far_ahead(self, reply: Reply) -> bool:
        return reply.made - reply.played > self._config.tts.lead_s * SAMPLE_RATE

    def _hand_on(self, reply: Reply) -> None:
        """Emits what was made, unless the reply is held or over."""
        if reply.held or self.reply is not reply:
            return
        for audio in reply.unsent():
            if reply.trace.first_pcm is None:
                reply.trace.first_pcm = self._clock()
            self._emit(audio)
        if reply.complete and not reply.announced:
            reply.announced = True
            self._emit(ReplyMade(reply.response_id, reply.made - reply.base))

    def _amend(self, reply: Reply, message: Message, samples: int) -> None:
        """A report that came after the interruption: the user had heard a little more."""
        reply.played = max(reply.played, min(reply.base + samples, reply.made))
        amended = Message("assistant", reply.heard_text())
        self._history.replace(message, amended)
        self._interrupted = (reply, amended)

    def _finish(self, reply: Reply) -> None:
        """The reply has been heard to its end."""
        self.reply = None
        if text := reply.text():
            self._history.add_character(text)
        self._history.answered()
        self._emit(ReplyText(reply.response_id, text, final=True))
        self._emit(ReplyHeard(reply.response_id, text))
