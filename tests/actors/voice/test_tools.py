"""Tools that a character.yaml names: over HTTP, from installed packages, from an MCP server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from actors.voice import tools
from actors.voice.llm import converse
from actors.voice.protocols import Message, Tool, ToolCall
from actors.voice.tools import open_tools
from characters.character import ToolConfig, load_folder
from characters.errors import UserError
from tests.actors.voice import fake_server
from tests.actors.voice.fake_server import FakeServer

LOOPBACK = ["127.0.0.1"]


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with fake_server.serving() as running:
        yield running


def use(config: ToolConfig, arguments: dict[str, Any], hosts: list[str] = LOOPBACK) -> str:
    """What the tool's result is."""

    async def call() -> str:
        (tool,) = await open_tools([config], hosts)
        return await tool.run(arguments)

    return asyncio.run(call())


def test_a_web_address_is_asked_in_json(server: FakeServer) -> None:
    server.answers = [fake_server.raw(b'{"degrees": 7}', "application/json")]
    config = ToolConfig(name="weather", url=f"{server.url}/weather", parameters={"city": "A city"})
    assert use(config, {"city": "Oslo"}) == '{"degrees": 7}'
    assert server.requests[0]["city"] == "Oslo" and server.requests[0]["path"] == "/v1/weather"


@pytest.mark.parametrize(
    ("answer", "message"),
    [(fake_server.error(500), "answered 500"), (fake_server.raw(b"x" * 200_000, "text/plain"), "larger than")],
)
def test_an_answer_that_is_none_is_an_error(server: FakeServer, answer: fake_server.Answer, message: str) -> None:
    server.answers = [answer]
    with pytest.raises(UserError, match=message):
        use(ToolConfig(name="weather", url=server.url), {})


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/x", "http://169.254.169.254/latest", "http://localhost/"])
@pytest.mark.parametrize("kind", ["url", "mcp"])
def test_a_stranger_cannot_have_a_host_called(url: str, kind: str) -> None:
    with pytest.raises(UserError, match="operator must name that host"):
        use(ToolConfig(name="x", **{kind: url}), {}, hosts=["api.example.org"])


def test_only_installed_packages_offer_python(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="no Python tool 'os:system'"):
        use(ToolConfig(name="x", python="os:system"), {})
    offered = [EntryPoint("clock", "tests.actors.voice.test_tools:clock", tools.GROUP)]
    monkeypatch.setattr(tools, "entry_points", lambda group: offered)
    assert use(ToolConfig(name="time", python="clock"), {"zone": "UTC"}) == "noon in UTC"


def clock(zone: str) -> str:
    """Tells the time."""
    return f"noon in {zone}"


@pytest.fixture
def mcp_url() -> Iterator[str]:
    """A real MCP server on loopback."""
    import socket

    import uvicorn
    from mcp.server import MCPServer

    found = MCPServer("weather")

    @found.tool()
    def weather(city: str) -> str:
        """The weather of a city."""
        if city == "Nowhere":
            raise ValueError("no such city")
        return f"sunny in {city}"

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    running = uvicorn.Server(uvicorn.Config(found.streamable_http_app(), port=port, log_level="error"))
    thread = threading.Thread(target=running.run)
    thread.start()
    while not running.started:
        thread.join(0.05)
    yield f"http://127.0.0.1:{port}/mcp"
    running.should_exit = True
    thread.join()


def test_all_tools_of_an_mcp_server_are_offered(mcp_url: str) -> None:
    async def call() -> None:
        (tool,) = await open_tools([ToolConfig(mcp=mcp_url)], LOOPBACK)
        assert (tool.name, tool.description) == ("weather", "The weather of a city.")
        assert tool.parameters["properties"]["city"]["type"] == "string"
        assert await tool.run({"city": "Oslo"}) == "sunny in Oslo"
        with pytest.raises(UserError, match="Error executing tool weather"):
            await tool.run({"city": "Nowhere"})

    asyncio.run(call())


def test_an_mcp_server_that_is_away_is_named() -> None:
    with pytest.raises(UserError, match=r"MCP server at http://127.0.0.1:9/mcp does not answer"):
        use(ToolConfig(mcp="http://127.0.0.1:9/mcp"), {})


def test_two_tools_of_one_name_are_an_error(server: FakeServer) -> None:
    config = ToolConfig(name="x", url=server.url)
    with pytest.raises(UserError, match="two tools are called 'x'"):
        asyncio.run(open_tools([config, config], LOOPBACK))


def test_a_character_file_names_them(tmp_path: Path) -> None:
    from PIL import Image

    Image.new("RGB", (8, 8)).save(tmp_path / "p.png")
    file = tmp_path / "character.yaml"
    file.write_text(
        "name: Ann\nportrait: p.png\ntools:\n- name: weather\n  description: Weather.\n  url: https://example.org/w\n"
        "  parameters:\n    city: A city\n    days: {type: integer}\n"
    )
    (tool,) = load_folder(tmp_path).character.tools
    assert tool.parameters == {"city": "A city", "days": {"type": "integer"}}
    assert tools._schema(tool)["properties"]["city"] == {"type": "string", "description": "A city"}
    for line, message in (("url: ftp://x", "begins with http"), ("python: a\n  url: http://x", "one of url")):
        file.write_text(f"name: Ann\nportrait: p.png\ntools:\n- name: weather\n  {line}\n")
        with pytest.raises(UserError, match=message):
            load_folder(tmp_path)


class Caller:
    """A model that calls two tools at once, then says what they told."""

    async def warm(self) -> None: ...

    async def stream(self, messages: Any, tools: Any = ()) -> Any:
        told = [message.text for message in messages if message.role == "tool"]
        if told:
            yield " and ".join(told)
        else:
            yield ToolCall("1", "slow", "{}")
            yield ToolCall("2", "slow", "{}")


def test_a_slow_tool_is_bridged_and_tools_run_beside_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.voice.llm._FILLER_SECONDS", 0.05)
    running, most = 0, 0

    async def slow(arguments: dict[str, Any]) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.2)
        running -= 1
        return "done"

    async def talk() -> list[str]:
        return [piece async for piece in converse(Caller(), [Message("user", "Go.")], [Tool("slow", "", slow)])]

    assert asyncio.run(talk()) == ["One moment. ", "done and done"]
    assert most == 2
