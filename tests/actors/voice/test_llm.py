from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import aclosing

import numpy as np
import pytest

from actors.voice.config import LlmConfig, SttConfig, TtsConfig
from actors.voice.llm import OpenAiModel, converse
from actors.voice.protocols import Message, Tool
from actors.voice.remote import RemoteStt, RemoteVoice
from characters.errors import UserError
from tests.actors.voice import fake_server
from tests.actors.voice.fake_server import FakeServer

HELLO = [Message("system", "You are Ann."), Message("user", "Hello")]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    with fake_server.serving() as running:
        yield running


def model(server: FakeServer, timeout: float = 5.0) -> OpenAiModel:
    return OpenAiModel(LlmConfig(engine="openai", model="m", base_url=server.url, timeout_s=timeout))


async def collect(language_model: OpenAiModel, tools: tuple[Tool, ...] = (), rounds: int = 4) -> list[str]:
    try:
        return [piece async for piece in converse(language_model, HELLO, tools, rounds)]
    finally:
        await language_model.close()


def weather(log: list[dict]) -> Tool:
    async def run(arguments: dict) -> str:
        log.append(arguments)
        if arguments.get("city") == "Nowhere":
            raise KeyError("no such city")
        return "sunny"

    return Tool("weather", "The weather of a city.", run)


def test_text_streams(server: FakeServer) -> None:
    server.answers = [fake_server.text("Hel", "lo ", "there.")]
    assert asyncio.run(collect(model(server))) == ["Hel", "lo ", "there."]
    request = server.requests[0]
    assert request["path"] == "/v1/chat/completions" and request["key"] == "Bearer secret" and request["stream"] is True
    assert request["messages"] == [{"role": "system", "content": "You are Ann."}, {"role": "user", "content": "Hello"}]


def test_tools_are_called_and_answered(server: FakeServer) -> None:
    server.answers = [
        fake_server.call("weather", '{"city": "Oslo"}', say="One moment."),
        fake_server.text("It is sunny."),
    ]
    log: list[dict] = []
    assert "".join(asyncio.run(collect(model(server), (weather(log),)))) == "One moment. It is sunny."
    assert log == [{"city": "Oslo"}]
    assert server.requests[0]["tools"][0]["function"]["name"] == "weather"
    asked, told = server.requests[1]["messages"][2:]
    assert json.loads(asked["tool_calls"][0]["function"]["arguments"]) == {"city": "Oslo"}
    assert told == {"role": "tool", "content": "sunny", "tool_call_id": "c1"}


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("weather", '{"city": "Nowhere"}', "no such city"),
        ("weather", "{city}", "not JSON"),
        ("weather", "[1]", "must be a JSON object"),
        ("launch", "{}", "no tool 'launch'"),
    ],
)
def test_the_model_is_told_of_failed_tools(server: FakeServer, name: str, arguments: str, told: str) -> None:
    server.answers = [fake_server.call(name, arguments), fake_server.text("Sorry.")]
    assert asyncio.run(collect(model(server), (weather([]),))) == ["Sorry."]
    assert told in server.requests[1]["messages"][-1]["content"]


def test_tool_calls_come_to_an_end(server: FakeServer) -> None:
    server.answers = [fake_server.call("weather", "{}")] * 3
    asyncio.run(collect(model(server), (weather([]),), rounds=2))
    assert len(server.requests) == 3 and "tools" not in server.requests[2]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (fake_server.error(500), "InternalServerError"),
        (fake_server.error(401), "AuthenticationError"),
        (fake_server.error(429), "RateLimitError"),
        (fake_server.silence(1.0), "said nothing for 0.3 s|APITimeoutError"),
        (fake_server.text("Hel", "lo", pause=1.0), "said nothing for 0.3 s|Timeout"),
        (fake_server.raw(b"data: {nonsense\n\n", "text/event-stream"), "language model failed"),
    ],
)
def test_failures_are_one_line(server: FakeServer, answer: fake_server.Answer, message: str) -> None:
    server.answers = [answer]
    with pytest.raises(UserError, match=message) as raised:
        asyncio.run(collect(model(server, timeout=0.3)))
    assert "secret" not in str(raised.value) and "\n" not in str(raised.value)


def test_nobody_there(server: FakeServer) -> None:
    config = LlmConfig(engine="openai", model="m", base_url="http://127.0.0.1:9/v1")
    with pytest.raises(UserError, match="APIConnectionError"):
        asyncio.run(collect(OpenAiModel(config)))


def test_closing_hangs_up(server: FakeServer) -> None:
    server.answers = [fake_server.text(*["word " * 2000] * 2000, pause=0.001)]

    async def listen_a_little() -> None:
        language_model = model(server)
        async with aclosing(converse(language_model, HELLO)) as pieces:  # type: ignore[type-var]
            async for _ in pieces:
                break
        await language_model.close()

    asyncio.run(listen_a_little())
    assert server.cut.wait(5)


def test_remote_speech_to_text(server: FakeServer) -> None:
    server.answers = [fake_server.raw(b'{"text": " Hello there. "}', "application/json"), fake_server.error(503)]
    stt = RemoteStt(SttConfig(engine="openai", base_url=server.url))
    assert stt.transcribe(np.zeros(1600, np.float32)).text == "Hello there."
    assert b"RIFF" in server.requests[0]["raw"] and server.requests[0]["path"] == "/v1/audio/transcriptions"
    with pytest.raises(UserError, match="speech-to-text server failed"):
        stt.transcribe(np.zeros(1600, np.float32))


def test_remote_text_to_speech(server: FakeServer) -> None:
    sound = np.arange(24_000, dtype="<i2").tobytes()
    server.answers = [fake_server.raw(sound, "audio/pcm"), fake_server.error(503)]
    voice = RemoteVoice(TtsConfig(engine="openai", base_url=server.url))
    (speech,) = voice.speak("Hello.")
    assert len(speech.pcm) == 24_000 and speech.pcm[16_384] == pytest.approx(0.5)
    assert server.requests[0]["input"] == "Hello." and server.requests[0]["response_format"] == "pcm"
    with pytest.raises(UserError, match="text-to-speech server failed"):
        list(voice.speak("Hello."))
