"""A simple, honest conversation in character, by rules: offline, without delay, and the same for the same seed."""

from __future__ import annotations

import random
import re
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime

from actors.voice.persona.intents import NO, QUESTION, WHY, YES, intent_of, plain
from actors.voice.persona.lines import LINES
from actors.voice.persona.memory import Memory, swap_person
from actors.voice.persona.numerals import ordinal, to_words
from actors.voice.persona.sums import solve
from actors.voice.protocols import Message, Tool, ToolCall
from characters.character import Character

# After a reply that ends with one of these offers, "yes" accepts the offer.
_OFFERS = ("a joke?", "hear a joke?", "another joke?", "another?", "joke in its place?", "joke instead?")
_NAME_ASKED = ("your name?", "what's yours?", "should I call you", "Would you tell me?")
_ANSWERS_PER_TURN = 3
# Patterns are tried on every sentence, some in quadratic time: the newest are read, and the beginning of a long one.
_SENTENCES, _LONGEST_SENTENCE = 8, 300
_LONGEST_REMARK = _SENTENCES * _LONGEST_SENTENCE
_RECENT = 6  # newest intents, among which a question counts as asked again
# Intents whose answers never begin with "as I said".
_NO_REPEATS = "greet joke story thanks sorry bye night stop laugh again recall taste glad like"
_NEVER_REPEATED = frozenset(_NO_REPEATS.split())


class ScriptedPersona:
    """`LanguageModel` without a model, for one session. It claims only what the character's file and the user say.

    Its state is what it has learned about the user and which phrasings it has used.
    """

    def __init__(self, character: Character, seed: int = 0, now: Callable[[], datetime] = datetime.now) -> None:
        """`seed` fixes the choice among phrasings; `now` is the local time."""
        self._character = character
        self._seed = seed
        self._now = now
        self.memory = Memory()
        self._recent: deque[str] = deque(maxlen=_RECENT)
        self._used: Counter[str] = Counter()
        self._order: dict[str, list[int]] = {}

    async def warm(self) -> None:
        """See `LanguageModel.warm`: there is nothing to do."""

    async def stream(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> AsyncIterator[str | ToolCall]:
        """See `LanguageModel.stream`. Tools are never called."""
        said = [m.text for m in messages if m.role == "user"]
        if not self._used:  # a conversation that another persona began
            for text in said[:-1]:
                self.memory.learn_name(text[:_LONGEST_REMARK])
                self.memory.learn_fact(text[:_LONGEST_SENTENCE])
        heard = [m.text for m in messages if m.role == "assistant" and m.text]
        yield self.reply(said[-1] if said else "", heard[-1] if heard else "")

    def reply(self, text: str, last_reply: str = "") -> str:
        """The answer to `text`. `last_reply` is what the user heard last: "yes" and "what?" refer to it."""
        text = text[-_LONGEST_REMARK:]
        learned_name = self.memory.learn_name(text)
        parts = [part[:_LONGEST_SENTENCE] for part in re.split(r"(?<=[.!?…])\s+|\n", text) if plain(part)]
        parts = parts[-_SENTENCES:]
        answers: list[str] = []
        done: set[str] = set()
        for part in parts:
            if (answer := self._answer(part, last_reply, learned_name, done)) and answer not in answers:
                answers.append(answer)
        if not answers:
            return self._say("not caught")
        # Of several answers only the last may ask: other questions would stay unanswered.
        *before, last = answers[-_ANSWERS_PER_TURN:]
        return " ".join([*(_without_question(a) for a in before), last])

    def _answer(self, part: str, last_reply: str, learned_name: bool, done: set[str]) -> str | None:
        """The answer to one sentence; None if the others cover it. `done`: intents of the turn, answered before."""
        words = plain(part)
        intent = intent_of(words)
        if learned_name and "name" not in done and (intent in (None, "greet", "recall") or "name" in words):
            done |= {"name", "greet"}
            rest = self.memory.learn_fact(part)
            answer = self._say("nice to meet", name=self.memory.name)
            also = intent if intent in ("ask name", "how am i", "what am i", "can do") else None
            return " ".join([answer, self._intent(also, words, part, last_reply)]) if also else _with(answer, rest)
        if intent in done:
            return None
        try:
            if solved := solve(part):
                name = "sum" if solved.exact else "sum, rounded"
                return _capital(self._say(name, question=solved.question, answer=solved.answer))
        except ZeroDivisionError:
            return self._say("by zero")
        if intent is None or intent == "taste":
            fact = self.memory.learn_fact(part)
            if fact and not QUESTION.match(words):
                return _capital(self._say("learned", fact=fact))
        if intent is not None:
            if intent == "greet" and done:
                return None
            done.add(intent)
            return self._intent(intent, words, part, last_reply)
        return self._loose(words, last_reply)

    def _intent(self, intent: str, words: str, part: str, last_reply: str) -> str:
        """The answer to a sentence whose intent is known."""
        before = self._recent.count(intent)
        self._recent.append(intent)
        answer = self._plain_intent(intent, words, last_reply)
        if intent in _NEVER_REPEATED or not before:
            return answer
        prefix = self._say("said before" if before == 1 else "said often")
        keep = answer[:2] in ("I ", "I'") or answer.startswith(self._character.name) or prefix.endswith(". ")
        return prefix + (answer if keep else answer[0].lower() + answer[1:])

    def _plain_intent(self, intent: str, words: str, last_reply: str) -> str:
        memory, name = self.memory, self.memory.name
        match intent:
            case "again":
                return self._say("again", value=last_reply) if last_reply else self._say("nothing to repeat")
            case "ask user name":
                return self._say("know your name", name=name) if name else self._say("no name yet")
            case "ask name":
                return self._say("my name, known", name=name) if name else self._say("my name")
            case "recall all":
                facts = [f"Your name is {name}"] * bool(name) + [_capital(f) for f in list(memory.facts.values())[-4:]]
                return self._say("recall all", facts=". ".join(facts)) if facts else self._say("recall nothing")
            case "recall":
                fact = memory.about(words)
                return self._say("recall", fact=fact) if fact else self._say("recall, unknown")
            case "time":
                return self._say("time", value=spoken_time(self._now()))
            case "date":
                return self._say("date", value=spoken_date(self._now()))
            case "about me":
                return self._say("about me", who=self._self())
            case "taste":
                return self._say("taste", taste=self._taste())
            case "like it":
                thing = words.split(" like ", 1)[-1].split(" love ", 1)[-1].removeprefix("to ")
                return self._say("like it", thing=swap_person(thing))
            case "greet" if self._recent.count("greet") > 1:
                return self._say("greet again")
            case _:
                return self._say(intent)

    def _loose(self, words: str, last_reply: str) -> str:
        """The answer to a sentence that no intent covers."""
        offered = last_reply.lower().endswith(_OFFERS)
        if YES.match(words):
            return self._say("joke") if offered else self._say("yes")
        if NO.match(words):
            return self._say("no")
        if WHY.match(words):
            return self._say("don't know why")
        if QUESTION.match(words):
            return self._say("don't know")
        asked_name = any(words in last_reply for words in _NAME_ASKED)
        if asked_name and len(words.split()) == 1 and words.isalpha():
            self.memory.name = words.capitalize()
            return self._say("nice to meet", name=self.memory.name)
        if len(words) < 3 or not re.search("[aeiouy]", words):
            return self._say("not caught")
        return self._say("follow")

    def _say(self, key: str, **values: str) -> str:
        """One of the key's phrasings, each used once before any is used again."""
        lines = LINES[key]
        turn, index = divmod(self._used[key], len(lines))
        self._used[key] += 1
        if index == 0 or key not in self._order:
            order = list(range(len(lines)))
            random.Random(f"{self._seed}/{key}/{turn}").shuffle(order)
            if len(order) > 1 and self._order.get(key, [None])[-1] == order[0]:
                order.append(order.pop(0))  # never the same twice in a row
            self._order[key] = order
        user = f", {self.memory.name}" if self.memory.name else ""
        return lines[self._order[key][index]].format(me=self._character.name, user=user, **values)

    def _self(self) -> str:
        """Who the character is, from its file, in the first person."""
        first = _first_person(_sentences(self._character.persona)[:1])
        return first or f"I'm {self._character.name}. {self._character.description}".strip()

    def _taste(self) -> str:
        """What the character likes, from its file, in the first person."""
        likes = [
            sentence
            for sentence in _sentences(self._character.persona)
            if re.search(r"\b(like|love|enjoy|value|fond|find|favourite|celebrate|notice)\b", sentence)
        ]
        return _first_person(likes[:1]) or "I like good questions, and people who take their time."


def _sentences(text: str) -> list[str]:
    return [s.strip() for s in re.findall(r"[^.!?]+[.!?]", " ".join(text.split()))]


def _first_person(sentences: list[str]) -> str:
    """ "You are Ann, a painter." -> "I am Ann, a painter."""
    text = " ".join(sentences)
    for pattern, own in (
        (r"\b([Yy])ou are\b", "I am"),
        (r"\b([Yy])ou're\b", "I'm"),
        (r"\b([Yy])ourself\b", "myself"),
        (r"\byours\b", "mine"),
        (r"\bYour\b", "My"),
        (r"\byour\b", "my"),
        (r"\b(to|for|with|from|of|at|by) you\b", r"\1 me"),
        (r"\b([Yy])ou\b", "I"),
    ):
        text = re.sub(pattern, own, text)
    return text


def _with(answer: str, fact: str | None) -> str:
    return f"{answer} And {fact}, I'll remember that too." if fact else answer


def _without_question(answer: str) -> str:
    kept = [s for s in re.findall(r"[^.!?]+[.!?]+", answer) if not s.strip().endswith("?")]
    return "".join(kept).strip() or answer


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def spoken_time(now: datetime) -> str:
    """15:05 -> "five past three in the afternoon"."""
    hour, minute = now.hour, now.minute
    part = "in the morning" if hour < 12 else "in the afternoon" if hour < 18 else "in the evening"
    name = to_words((hour - 1) % 12 + 1)
    after = to_words(hour % 12 + 1)
    if minute == 0:
        return f"{name} o'clock {part}"
    if minute in (15, 30):
        return f"{'a quarter' if minute == 15 else 'half'} past {name} {part}"
    if minute == 45:
        return f"a quarter to {after} {part}" if hour not in (11, 17, 23) else f"a quarter to {after}"
    count = to_words(minute)
    unit = "" if minute % 5 == 0 else " minutes" if minute > 1 else " minute"
    return f"{count}{unit} past {name} {part}"


def spoken_date(now: datetime) -> str:
    """-> "Monday, the third of March, twenty twenty-five"."""
    year = f"{to_words(now.year // 100)} {to_words(now.year % 100)}" if 2009 < now.year < 2100 else to_words(now.year)
    return f"{now:%A}, the {ordinal(now.day)} of {now:%B}, {year}"
