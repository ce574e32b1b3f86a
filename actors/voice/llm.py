"""Any language model behind an OpenAI-compatible HTTP interface, streamed, with tool calls."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

from actors.voice.config import LlmConfig
from actors.voice.habits import Habits
from actors.voice.protocols import LanguageModel, Message, Tool, ToolCall
from actors.voice.thoughts import Thoughts
from actors.voice.tool_calls import ToolCalls
from characters.errors import UserError

log = logging.getLogger(__name__)

_TOOL_SECONDS = 10.0
_FILLER_SECONDS = 0.6  # after which the user is told that a tool takes a while
_FILLER = "One moment. "
_LONGEST_RESULT = 4000  # characters of a tool's result that are shown to the model


def api_key(variable: str, base_url: str) -> str:
    """The server's key from the environment. A server that `base_url` names may need none.

    Raises:
        UserError: there is no key, and no `base_url`.
    """
    key = os.environ.get(variable, "")
    if not key and not base_url:
        raise UserError(f"set the environment variable {variable}, or base_url to a server that needs no key")
    return key or "none"


class OpenAiModel:
    """`LanguageModel` over HTTP.

    Raises:
        UserError: the package openai is missing, or there is no key.
    """

    def __init__(self, config: LlmConfig) -> None:
        try:
            import openai
        except ImportError as error:
            raise UserError("llm.engine openai needs the package openai: pip install -e '.[voice]'") from error
        self._config = config
        # No retries: a second try would come too late for a conversation. An apology comes in time.
        self._client: Any = openai.AsyncOpenAI(
            api_key=api_key(config.key_variable, config.base_url),
            base_url=config.base_url or None,
            timeout=config.timeout_s,
            max_retries=0,
        )
        self._habits = Habits()

    async def warm(self) -> None:
        """See `LanguageModel.warm`: learn with one word what the server refuses and how it thinks."""
        try:
            async for _ in self.stream([Message("user", "Say hello, in one word.")]):
                pass
        except UserError as error:
            log.warning("%s", error)

    async def stream(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> AsyncIterator[str | ToolCall]:
        """See `LanguageModel.stream`. What the server refuses is learnt, and not sent again."""
        habits, calls = self._habits, ToolCalls([tool.name for tool in tools])
        thoughts = Thoughts(habits.thinks_first)
        answer: Any = None
        spoken, cut_off = False, False
        try:
            answer = await self._ask(messages, tools)
            parts = aiter(answer)
            while True:
                async with asyncio.timeout(self._config.timeout_s):
                    part = await anext(parts, None)
                if part is None:
                    break
                choice = part.choices[0] if part.choices else None
                if choice is None:
                    continue
                cut_off = cut_off or choice.finish_reason == "length"
                if choice.delta is None:
                    continue
                if text := thoughts.push(choice.delta.content or ""):
                    spoken = spoken or bool(text.strip())
                    yield text
                for piece in choice.delta.tool_calls or ():
                    calls.add(piece)
            if text := thoughts.flush():
                spoken = spoken or bool(text.strip())
                yield text
        except TimeoutError as error:
            raise UserError(f"the language model said nothing for {self._config.timeout_s:g} s") from error
        except UserError:
            raise
        except Exception as error:  # the client does not catch errors of its transport and its parser
            raise UserError(f"the language model failed: {type(error).__name__}: {error}") from error
        finally:
            habits.thinks_first = habits.thinks_first or thoughts.stray
            if answer is not None:
                await answer.close()
        for text in thoughts.calls:
            calls.add_text(text)
        called = calls.finished()
        for call in called:
            yield call
        if cut_off and not spoken and not called and not habits.thinks:
            # Thoughts took all tokens of the reply. From now on there are more, for this reply too.
            habits.thinks = True
            async for again in self.stream(messages, tools):
                yield again

    async def _ask(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Any:
        """The server's stream. A request that it refuses is changed as it says, as often as there is something new."""
        import openai

        while True:
            habits, config = self._habits, self._config
            request: dict[str, Any] = {"model": config.model, "stream": True}
            request |= habits.parameters(config.temperature, config.max_tokens)
            sent = habits.messages(messages)
            request["messages"] = [_wire(message) for message in sent]
            if tools and habits.tools:
                request["tools"] = [
                    {
                        "type": "function",
                        "function": {"name": t.name, "description": t.description, "parameters": t.parameters},
                    }
                    for t in tools
                ]
            try:
                # The client's time-out is not enough: servers keep a connection alive without an answer.
                async with asyncio.timeout(config.timeout_s):
                    return await self._client.chat.completions.create(**request)
            except openai.APIStatusError as refusal:
                learnt = refusal.status_code in (400, 413, 422, 500) and habits.learn(
                    str(refusal.body or refusal.message), len(sent), "tools" in request
                )
                if not learnt:
                    raise
                log.info("the language model's server refused: %s; from now on %s", refusal.message, habits)

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.close()


async def converse(
    model: LanguageModel, messages: Sequence[Message], tools: Sequence[Tool] = (), rounds: int = 4
) -> AsyncIterator[str]:
    """Yields the text of a reply, and meanwhile runs the tools that the model calls.

    Args:
        model: that replies.
        messages: the conversation.
        tools: that may be called; after `rounds` rounds of calls no tool is offered.

    Raises:
        UserError: from the model. If a tool fails, the model is told and goes on.
    """
    messages = list(messages)
    for turn in range(rounds + 1):
        text, calls = "", list[ToolCall]()
        async with aclosing(model.stream(messages, tools if turn < rounds else ())) as parts:  # type: ignore[type-var]
            async for part in parts:
                if isinstance(part, ToolCall):
                    calls.append(part)
                else:
                    text += part
                    yield part
        if not calls or turn == rounds:
            return
        if text and not text[-1].isspace():
            yield " "  # a new sentence follows the tools
        messages.append(Message("assistant", text, calls=tuple(calls)))
        running = [asyncio.ensure_future(_run(call, tools)) for call in calls]
        try:
            _, late = await asyncio.wait(running, timeout=_FILLER_SECONDS)
            if late and not text.strip():
                yield _FILLER
            for call, result in zip(calls, running, strict=True):
                messages.append(Message("tool", await result, call_id=call.id))
        finally:
            for result in running:
                result.cancel()


async def _run(call: ToolCall, tools: Sequence[Tool]) -> str:
    """A tool's result, or what went wrong, as text for the model."""
    tool = next((t for t in tools if t.name == call.name), None)
    if tool is None:
        return f"error: there is no tool {call.name!r}"
    try:
        arguments = json.loads(call.arguments or "{}")
    except ValueError as error:
        return f"error: the arguments are not JSON: {error}"
    if not isinstance(arguments, dict):
        return "error: the arguments must be a JSON object"
    try:
        async with asyncio.timeout(_TOOL_SECONDS):
            return str(await tool.run(arguments))[:_LONGEST_RESULT]
    except TimeoutError:
        return f"error: no result after {_TOOL_SECONDS:g} s"
    except Exception as error:  # whatever a tool raises, the conversation goes on
        log.warning("tool %s failed: %s", call.name, error)
        return f"error: {error}"


def _wire(message: Message) -> dict[str, Any]:
    """A message in the form of the HTTP interface."""
    wire: dict[str, Any] = {"role": message.role, "content": message.text}
    if message.calls:
        wire["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
            for c in message.calls
        ]
    if message.role == "tool":
        wire["tool_call_id"] = message.call_id
    return wire
