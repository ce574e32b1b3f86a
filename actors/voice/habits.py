"""What a language model's server takes: learnt from its refusals, once a session."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from actors.voice.protocols import Message

# Thoughts count as tokens too. A model that thinks is given so many times the tokens of what it says.
_ROOM_TO_THINK = 8


@dataclass
class Habits:
    """What requests to one server look like.

    Attributes:
        limit: name of the parameter that bounds a reply; "" if the server takes none.
        temperature: whether it takes a temperature.
        system: whether its template knows a system message.
        tools: whether it takes tools.
        thinks: whether thoughts have used up a reply's tokens.
        thinks_first: whether its replies begin with thoughts that no tag opens.
        newest: of the messages so many are sent; 0 = all.
    """

    limit: str = "max_tokens"
    temperature: bool = True
    system: bool = True
    tools: bool = True
    thinks: bool = False
    thinks_first: bool = False
    newest: int = 0

    def parameters(self, temperature: float, max_tokens: int) -> dict[str, Any]:
        """What bounds and steers a reply."""
        found: dict[str, Any] = {"temperature": temperature} if self.temperature else {}
        if self.limit:
            found[self.limit] = max_tokens * (_ROOM_TO_THINK if self.thinks else 1)
        return found

    def learn(self, refusal: str, messages: int, tools: bool) -> bool:
        """Make of the server's words what to do otherwise.

        Args:
            refusal: the body of its answer.
            messages: so many were sent.
            tools: tools were sent.

        Returns:
            Whether there is something to do otherwise, so that the request is worth a second try.
        """
        said = refusal.lower()
        before = repr(self)
        if "context" in said and any(word in said for word in ("length", "window", "exceed", "too long", "size")):
            self.newest = max(1, messages // 2) if messages > 1 else self.newest
        elif "max_tokens" in said or "max_completion_tokens" in said or "max_new_tokens" in said:
            self.limit = "max_completion_tokens" if self.limit == "max_tokens" else ""
        elif "temperature" in said:
            self.temperature = False
        elif tools and ("tool" in said or "function" in said):
            self.tools = False
        elif "system" in said:
            self.system = False
        return repr(self) != before

    def messages(self, messages: Sequence[Message]) -> list[Message]:
        """The conversation in a form that every chat template takes.

        One system message, then user and assistant in turns, the user first. What the character said before the user
        had said anything is told in the system message.
        """
        told = [m.text for m in messages if m.role == "system"]
        rest = [m for m in messages if m.role != "system"]
        if self.newest:
            rest = rest[-self.newest :]
            while len(rest) > 1 and rest[0].role == "tool":
                del rest[0]
        greeting = []
        while rest and rest[0].role == "assistant" and not rest[0].calls:
            greeting.append(rest.pop(0).text)
        if greeting:
            told.append(f"You opened the conversation with: {' '.join(greeting)}")
        turns: list[Message] = []
        for message in rest:
            last = turns[-1] if turns else None
            plain = last is not None and not last.calls and not message.calls
            if last is not None and plain and last.role == message.role and message.role != "tool":
                turns[-1] = Message(message.role, f"{last.text} {message.text}")
            else:
                turns.append(message)
        system = "\n\n".join(text for text in told if text)
        if not system:
            return turns
        if self.system:
            return [Message("system", system), *turns]
        if turns and turns[0].role == "user":
            return [Message("user", f"{system}\n\n{turns[0].text}"), *turns[1:]]
        return [Message("user", system), *turns]
