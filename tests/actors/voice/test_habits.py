"""A conversation goes on with every server of the zoo."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from actors.voice.config import LlmConfig
from actors.voice.habits import Habits
from actors.voice.llm import OpenAiModel, converse
from actors.voice.protocols import Message, Tool
from tests.actors.voice import fake_server, zoo
from tests.actors.voice.fake_server import FakeServer

# As a session's first turns are: the character has greeted, the user has spoken twice without an answer.
TALK = [
    Message("system", "You are Ann."),
    Message("assistant", "Hello, I'm Ann."),
    Message("user", "Hi."),
    Message("user", "How are you?"),
    Message("assistant", "Fine."),
    Message("user", "Good."),
]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    with fake_server.serving() as running:
        yield running


def weather(asked: list[Any]) -> Tool:
    async def run(arguments: dict[str, Any]) -> str:
        asked.append(arguments.get("city"))
        return "sunny"

    return Tool("weather", "The weather of a city.", run)


def replies(
    server: FakeServer, *answers: fake_server.Answer, turns: int = 1, asked: list[Any] | None = None
) -> list[str]:
    """What is said in so many turns of one session."""
    server.answers = list(answers)

    async def talk() -> list[str]:
        model = OpenAiModel(LlmConfig(engine="openai", model="m", base_url=server.url, timeout_s=5.0))
        tools = () if asked is None else (weather(asked),)
        try:
            return ["".join([piece async for piece in converse(model, TALK, tools)]) for _ in range(turns)]
        finally:
            await model.close()

    return asyncio.run(talk())


@pytest.mark.parametrize("name", zoo.REFUSING)
def test_what_a_server_refuses_is_learnt_once(server: FakeServer, name: str) -> None:
    assert replies(server, *[zoo.REFUSING[name]] * 12, turns=3, asked=[]) == ["Hi."] * 3
    refused = len(server.requests) - 3
    assert refused <= 4, [sorted(request) for request in server.requests]
    last = server.requests[-1]
    assert server.requests[-2]["messages"] == last["messages"]  # the second and third turn took one request each


def test_a_refusal_that_teaches_nothing_is_an_error(server: FakeServer) -> None:
    with pytest.raises(Exception, match="BadRequestError"):
        replies(server, *[fake_server.error(400, '{"error": {"message": "no such model"}}')] * 3)
    assert len(server.requests) == 1


def test_the_greeting_is_told_and_turns_alternate(server: FakeServer) -> None:
    replies(server, fake_server.text("Hi."))
    system, *turns = server.requests[0]["messages"]
    assert "You are Ann." in system["content"] and "Hello, I'm Ann." in system["content"]
    assert [(m["role"], m["content"]) for m in turns] == [
        ("user", "Hi. How are you?"), ("assistant", "Fine."), ("user", "Good.")
    ]  # fmt: skip


def test_without_a_system_message_the_user_says_it(server: FakeServer) -> None:
    found = Habits(system=False).messages(TALK)
    assert (
        found[0].role == "user" and found[0].text.startswith("You are Ann.") and found[0].text.endswith("How are you?")
    )


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
@pytest.mark.parametrize("name", zoo.TEXTS)
def test_only_what_is_meant_for_the_ear_is_spoken(server: FakeServer, name: str, size: int) -> None:
    written, meant = zoo.TEXTS[name]
    answer = zoo.deltas(*({"content": piece} for piece in zoo.pieces(written, size)))
    assert replies(server, answer)[0].strip() == meant


def test_reasoning_beside_the_content_is_not_spoken(server: FakeServer) -> None:
    parts = {"reasoning_content": "Hm.", "content": None}, {"reasoning": "Hm."}, {"content": "Hello."}
    assert replies(server, zoo.deltas(*parts)) == ["Hello."]


def test_a_server_that_opens_thoughts_without_a_tag_is_known_by_its_second_reply(server: FakeServer) -> None:
    answer = zoo.deltas({"content": "The user greets me. "}, {"content": "</think>\n\n"}, {"content": "Hello."})
    first, second, third = replies(server, *[answer] * 3, turns=3)
    assert second.strip() == third.strip() == "Hello."
    assert first.endswith("Hello.")


def test_a_reply_without_thoughts_is_spoken_even_if_thoughts_were_expected(server: FakeServer) -> None:
    thought = zoo.deltas({"content": "Hm.</think>Hello."})
    assert replies(server, thought, zoo.deltas({"content": "Bye."}), turns=2)[1] == "Bye."


def test_thoughts_that_take_all_tokens_get_more(server: FakeServer) -> None:
    empty = zoo.deltas({"content": "<think>Hm"}, finish="length")
    assert replies(server, empty, fake_server.text("Hi."), fake_server.text("Hi."), turns=2) == ["Hi.", "Hi."]
    assert [request["max_tokens"] for request in server.requests] == [300, 2400, 2400]


@pytest.mark.parametrize("name", zoo.CALLS)
def test_two_calls_stay_two(server: FakeServer, name: str) -> None:
    asked: list[Any] = []
    said = replies(server, zoo.deltas(*zoo.CALLS[name]), fake_server.text("Both sunny."), asked=asked)
    assert asked == ["Oslo", "Rome"] and said == ["Both sunny."]
    *_, calls, first, second = server.requests[1]["messages"]
    ids = [call["id"] for call in calls["tool_calls"]]
    assert len(set(ids)) == 2 and [first["tool_call_id"], second["tool_call_id"]] == ids


def test_a_failure_in_mid_stream_is_an_error_in_one_line(server: FakeServer) -> None:
    body = b'data: {"error": {"message": "CUDA out of memory on secret-host", "code": 500}}\n\n'
    with pytest.raises(Exception, match="language model failed") as raised:
        replies(server, fake_server.raw(body, "text/event-stream"))
    assert "\n" not in str(raised.value)
