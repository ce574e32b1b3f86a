"""What is remembered of a conversation."""

from __future__ import annotations

from actors.voice.history import History
from actors.voice.protocols import Message


def test_what_was_not_answered_audibly_is_one_message_with_what_follows() -> None:
    history = History(10)
    history.add_user("What is")
    history.add_user("your name?")
    assert history.messages == [Message("user", "What is your name?")]
    history.answered()
    history.add_user("Hello?")
    assert [m.text for m in history.messages] == ["What is your name?", "Hello?"]
    history.add_character("I'm Leila.")
    history.add_user("Hi.")
    assert [m.role for m in history.messages] == ["user", "user", "assistant", "user"]


def test_old_messages_are_forgotten_and_a_message_can_be_replaced() -> None:
    history = History(2)
    first = history.add_character("Well")
    twin = history.add_character("Well")
    history.replace(twin, Message("assistant", "Well, here"))
    assert [m.text for m in history.messages] == ["Well", "Well, here"], "this very message, not its twin"
    history.add_user("Stop.")
    assert [m.text for m in history.messages] == ["Well, here", "Stop."]
    history.replace(first, Message("assistant", "Too late"))
    assert [m.text for m in history.messages] == ["Well, here", "Stop."]


def test_what_a_user_says_is_bounded_in_each_message_and_in_all() -> None:
    history = History(40)
    for number in range(100):
        history.add_user(f"{number} " + "x" * 1000)
    assert len(history.messages) == 1 and len(history.messages[0].text) <= 4_000
    assert "99 x" in history.messages[0].text, "the newest is kept"
    for _ in range(40):
        history.add_character("Well")
        history.answered()
        history.add_user("y" * 10_000)
    assert sum(len(m.text) for m in history.messages) <= 24_000
