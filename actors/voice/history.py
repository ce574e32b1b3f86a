"""The conversation as both sides heard it."""

from __future__ import annotations

from actors.voice.protocols import Message

LONGEST_TEXT = 4_000  # characters of what one side says before the other answers; of more the newest are kept
_MOST_CHARACTERS = 24_000  # of all messages together


class History:
    """What the language model is shown of the past.

    Args:
        longest: messages that are kept; older ones are forgotten.

    Attributes:
        messages: the newest last.
    """

    def __init__(self, longest: int) -> None:
        self.messages: list[Message] = []
        self._longest = longest
        self._unanswered = False  # nothing of an answer to the newest user message has been heard

    def add_user(self, text: str) -> None:
        """The user said `text`. It continues their message before it if no answer to that has been heard."""
        text = text[-LONGEST_TEXT:]
        if self._unanswered and self.messages and self.messages[-1].role == "user":
            text = f"{self.messages.pop().text} {text}"[-LONGEST_TEXT:]
        self._add(Message("user", text))
        self._unanswered = True

    def add_character(self, text: str) -> Message:
        """The user heard the character say `text`."""
        message = Message("assistant", text)
        self._add(message)
        return message

    def answered(self) -> None:
        """The user hears an answer: what they say next is another message."""
        self._unanswered = False

    def replace(self, old: Message, new: Message) -> None:
        """Puts `new` in the place of this very message, unless it has been forgotten."""
        self.messages = [new if message is old else message for message in self.messages]

    def _add(self, message: Message) -> None:
        self.messages.append(message)
        del self.messages[: -self._longest]
        while len(self.messages) > 1 and sum(len(m.text) for m in self.messages) > _MOST_CHARACTERS:
            del self.messages[0]
