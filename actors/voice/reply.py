"""One reply: the clauses made for it, how much was sent, and how much was heard."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from actors.voice.events import ReplyAudio, TimedWord, TurnTrace
from actors.voice.tts import Clause
from characters.chunk import SAMPLE_RATE


@dataclass(eq=False)
class Reply:
    """Samples are at 24 kHz and count from the start of the reply, over all its responses.

    Attributes:
        response_id: of its present response; a resumed reply gets a new one.
        trace: of the turn that it answers.
        base: sample at which the present response began.
        made: samples that exist.
        sent: samples that were emitted.
        played: samples that the user has heard.
        complete: whether nothing more will be made.
        held: whether its response is cancelled, and the reply neither resumed nor interrupted yet.
        announced: whether `ReplyMade` was emitted for the present response.
        task: that makes it.
        wanted: set when more may be made.
        captioned: words that a caption has shown.
    """

    response_id: int
    trace: TurnTrace
    base: int = 0
    made: int = 0
    sent: int = 0
    played: int = 0
    complete: bool = False
    held: bool = False
    announced: bool = False
    task: asyncio.Task[None] | None = None
    wanted: asyncio.Event = field(default_factory=asyncio.Event)
    captioned: int = 0
    words: list[TimedWord] = field(default_factory=list)
    _clauses: list[tuple[int, Clause]] = field(default_factory=list)

    def add(self, clause: Clause) -> None:
        """Appends a clause."""
        self._clauses.append((self.made, clause))
        self.words += [TimedWord(w.text, self.made + w.start, self.made + w.end) for w in clause.words]
        self.made += len(clause.pcm)

    def unsent(self) -> list[ReplyAudio]:
        """What was made and not sent, for the present response; it counts as sent from now on."""
        audio = []
        for start, clause in self._clauses:
            end = start + len(clause.pcm)
            if end <= self.sent:
                continue
            skip = max(0, self.sent - start)
            kept = [w for w in clause.words if w.end > skip]
            at = start + skip - self.base
            words = tuple(TimedWord(w.text, start + w.start - self.base, start + w.end - self.base) for w in kept)
            text = clause.text if not skip else " ".join(w.text for w in kept)
            audio.append(ReplyAudio(self.response_id, clause.pcm[skip:], text, words, at))
            self.sent = end
        return audio

    def heard_words(self) -> int:
        """How many words have been heard, each to its half at least."""
        return sum((w.start + w.end) / 2 <= self.played for w in self.words)

    def heard_text(self) -> str:
        """The words that have been heard."""
        return " ".join(w.text for w in self.words[: self.heard_words()])

    def text(self) -> str:
        """All words that were made."""
        return " ".join(w.text for w in self.words)

    def left_ms(self) -> float:
        """Milliseconds that have not been heard; infinite while more is being made."""
        return (self.made - self.played) * 1000 / SAMPLE_RATE if self.complete else float("inf")

    def rewind(self, response_id: int) -> None:
        """Goes back to the start of the word that was cut, under a new response."""
        cut = [w.start for w in self.words if w.start <= self.played < w.end]
        at = max(self.base, cut[0]) if cut else self.played
        self.response_id = response_id
        self.base = self.sent = self.played = at
        self.held = self.announced = False
