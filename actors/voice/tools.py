"""What a character's language model may call: tools that its `character.yaml` names.

A character may come from a stranger, so it can only ask. A web address is called if the operator has allowed its host
(`llm.tool_hosts`), and Python code if an installed package offers it (entry points of the group `characters.tools`).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import Any
from urllib.parse import urlsplit

from actors.voice.protocols import Tool
from characters.character import ToolConfig
from characters.errors import UserError, did_you_mean

GROUP = "characters.tools"
_SECONDS = 10.0
_MOST_BYTES = 100_000


async def open_tools(configs: Sequence[ToolConfig], hosts: Sequence[str]) -> list[Tool]:
    """The tools of one character.

    Args:
        configs: from its `character.yaml`.
        hosts: that it may call, without ports; "*" allows all.

    Raises:
        UserError: a tool that is not allowed, not installed, or whose server does not answer. The message names it.
    """
    tools: list[Tool] = []
    for config in configs:
        if config.mcp:
            _check_host(config.mcp, hosts)
            tools += await _mcp_tools(config.mcp)
        elif config.url:
            _check_host(config.url, hosts)
            tools.append(_http_tool(config))
        else:
            tools.append(_installed_tool(config))
    names = [tool.name for tool in tools]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(f"two tools are called {twice[0]!r}")
    return tools


def _check_host(url: str, hosts: Sequence[str]) -> None:
    host = urlsplit(url).hostname
    if "*" not in hosts and host not in hosts:
        raise UserError(f"this character's tool calls {host}: the operator must name that host in llm.tool_hosts")


def _schema(config: ToolConfig) -> dict[str, Any]:
    properties = {
        name: told if isinstance(told, dict) else {"type": "string", "description": str(told)}
        for name, told in config.parameters.items()
    }
    return {"type": "object", "properties": properties}


def _http_tool(config: ToolConfig) -> Tool:
    """POST of the arguments as JSON; the answer's text is the result."""
    import httpx2

    async def run(arguments: dict[str, Any]) -> str:
        async with (
            httpx2.AsyncClient(timeout=_SECONDS) as client,
            client.stream("POST", config.url, json=arguments) as answer,
        ):
            body = b""
            async for part in answer.aiter_bytes():
                body += part
                if len(body) > _MOST_BYTES:
                    raise UserError(f"the answer is larger than {_MOST_BYTES:,} bytes")
        if answer.status_code >= 300:
            raise UserError(f"the server answered {answer.status_code}")
        return body.decode(errors="replace")

    return Tool(config.name, config.description, run, _schema(config))


def _installed_tool(config: ToolConfig) -> Tool:
    """A function of the arguments, async or not, that an installed package offers."""
    offered = {point.name: point for point in entry_points(group=GROUP)}
    if config.python not in offered:
        hint = did_you_mean(config.python, list(offered)) if offered else "no installed package offers tools"
        raise UserError(f"there is no Python tool {config.python!r} in the entry points of {GROUP}; {hint}")
    function = offered[config.python].load()

    async def run(arguments: dict[str, Any]) -> str:
        result = function(**arguments)
        return str(await result if inspect.isawaitable(result) else result)

    told = config.description or inspect.getdoc(function) or ""
    return Tool(config.name, told, run, _schema(config))


async def _mcp_tools(url: str) -> list[Tool]:
    """All tools of a Model Context Protocol server (streamable HTTP), each call over a connection of its own."""
    try:
        from mcp import Client
    except ImportError as error:
        raise UserError("a tool of kind mcp needs the package mcp: pip install -e '.[mcp]'") from error

    async def call(name: str, arguments: dict[str, Any]) -> str:
        async with Client(url, read_timeout_seconds=_SECONDS) as client:
            result = await client.call_tool(name, arguments)
        text = "\n".join(part.text if part.type == "text" else f"({part.type})" for part in result.content)
        if result.is_error:
            raise UserError(text or "the tool failed")
        return text

    try:
        async with asyncio.timeout(_SECONDS), Client(url) as client:
            listed = (await client.list_tools()).tools
    except Exception as error:  # whatever the transport raises, groups of errors too
        raise UserError(f"the MCP server at {url} does not answer") from error

    def tool(name: str, description: str, schema: dict[str, Any]) -> Tool:
        async def run(arguments: dict[str, Any]) -> str:
            return await call(name, arguments)

        return Tool(name, description, run, schema)

    return [tool(found.name, found.description or "", found.input_schema) for found in listed]
