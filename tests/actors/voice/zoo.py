"""Habits of language model servers, as recorded from their public bug reports: each an answer of a `FakeServer`."""

from __future__ import annotations

import itertools
import json
from typing import Any

from tests.actors.voice import fake_server
from tests.actors.voice.fake_server import Answer, Handler


def refuse(handler: Handler, message: str, status: int = 400, **more: Any) -> None:
    """An error in OpenAI's form."""
    body = {"error": {"message": message, "type": "invalid_request_error", **more}}
    fake_server.error(status, json.dumps(body))(handler, {})


def roles(request: dict[str, Any]) -> list[str]:
    return [message["role"] for message in request["messages"]]


def reasoning_model(handler: Handler, request: dict[str, Any]) -> None:
    """OpenAI's o-series and GPT-5."""
    if "max_tokens" in request:
        return refuse(
            handler,
            "Unsupported parameter: 'max_tokens' is not supported with this model. "
            "Use 'max_completion_tokens' instead.",
            param="max_tokens", code="unsupported_parameter",
        )  # fmt: skip
    if request.get("temperature", 1) != 1:
        return refuse(
            handler,
            "Unsupported value: 'temperature' does not support 0.7 with this model. Only the default (1) value is "
            "supported.",
            param="temperature", code="unsupported_value",
        )  # fmt: skip
    return fake_server.text("Hi.")(handler, request)


def strict_fields(handler: Handler, request: dict[str, Any]) -> None:
    """A server that forbids fields it does not know, and says so in pydantic's form."""
    unknown = sorted(request.keys() - {"model", "messages", "stream", "temperature"})
    if unknown:
        detail = [
            {"type": "extra_forbidden", "loc": ["body", key], "msg": "Extra inputs are not permitted"}
            for key in unknown
        ]
        return fake_server.error(422, json.dumps({"detail": detail}))(handler, request)
    return fake_server.text("Hi.")(handler, request)


def alternating(handler: Handler, request: dict[str, Any]) -> None:
    """The templates of Mistral and Llama 2 behind vLLM: a system message, then user and assistant in turns."""
    said = [role for role in roles(request) if role != "system"]
    if said[0] != "user" or any(a == b for a, b in itertools.pairwise(said)):
        return refuse(
            handler, "Conversation roles must alternate user/assistant/user/assistant/...", code="BadRequestError"
        )
    return fake_server.text("Hi.")(handler, request)


def gemma(handler: Handler, request: dict[str, Any]) -> None:
    """Gemma 2's template: no system message at all."""
    if "system" in roles(request):
        return refuse(handler, "System role not supported")
    return alternating(handler, request)


def llama_cpp_gemma(handler: Handler, request: dict[str, Any]) -> None:
    """The same behind llama.cpp, which calls a template's refusal an internal error."""
    if "system" in roles(request):
        return refuse(handler, "Jinja Exception: System role not supported", 500)
    return alternating(handler, request)


def no_tools(handler: Handler, request: dict[str, Any]) -> None:
    """Ollama, for a model without a template for tools."""
    if "tools" in request:
        return refuse(handler, "registry.ollama.ai/library/gemma:2b does not support tools")
    return fake_server.text("Hi.")(handler, request)


def vllm_without_tools(handler: Handler, request: dict[str, Any]) -> None:
    """vLLM that was started without a tool parser."""
    if "tools" in request:
        return refuse(handler, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set')
    return fake_server.text("Hi.")(handler, request)


def short_context(handler: Handler, request: dict[str, Any]) -> None:
    """A context that holds four messages."""
    if len(request["messages"]) > 4:
        return refuse(
            handler,
            "This model's maximum context length is 2048 tokens. However, your messages resulted in 2611 tokens.",
            code="context_length_exceeded",
        )
    return fake_server.text("Hi.")(handler, request)


REFUSING = {
    f.__name__: f
    for f in (
        reasoning_model, strict_fields, alternating, gemma, llama_cpp_gemma, no_tools, vllm_without_tools, short_context
    )
}  # fmt: skip


def deltas(*parts: dict[str, Any], finish: str | None = None) -> Answer:
    """Streams deltas as they are, with what surrounds them on real servers: comments, usage, empty choices, nulls."""

    def answer(handler: Handler, _: dict[str, Any]) -> None:
        handler.begin(200, "text/event-stream")
        handler.wfile.write(b": OPENROUTER PROCESSING\n\n")
        for delta in ({"role": "assistant", "content": None}, *parts):
            chunk = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "m", "usage": None}
            chunk["choices"] = [{"index": 0, "delta": delta, "finish_reason": None}]
            handler.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        last = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "m", "choices": []}
        if finish:
            end = {**last, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}
            handler.wfile.write(f"data: {json.dumps(end)}\n\n".encode())
        handler.wfile.write(f"data: {json.dumps({**last, 'usage': {'total_tokens': 9}})}\n\n".encode())
        handler.wfile.write(b"data: [DONE]\n\n")

    return answer


def pieces(text: str, size: int) -> list[str]:
    """The text cut into pieces, tags too."""
    return [text[i : i + size] for i in range(0, len(text), size)]


# What a model wrote, and what of it is for the ear.
TEXTS = {
    "tagged": ("<think>The user greets me.</think>\n\nHello there.", "Hello there."),
    "tagged twice": ("<think>One.</think>Hello <think>two</think>there.", "Hello there."),
    "other tag": ("<reasoning>Hm < 3 > 2.</reasoning>Hello there.", "Hello there."),
    "in capitals": ("<THINK>Hm.</THINK>Hello there.", "Hello there."),
    "magistral": ("[THINK]Hm.[/THINK]Hello there.", "Hello there."),
    "kimi": ("◁think▷Hm.◁/think▷Hello there.", "Hello there."),
    "empty thought": ("<think>\n\n</think>\n\nHello there.", "Hello there."),
    "harmony": (
        "<|channel|>analysis<|message|>We greet.<|end|>"
        "<|start|>assistant<|channel|>final<|message|>Hello there.<|return|>",
        "Hello there.",
    ),
    "harmony with commentary": (
        "<|channel|>commentary to=functions.x<|message|>{}<|call|><|channel|>final<|message|>Hello there.",
        "Hello there.",
    ),
    "harmony without marks": ("analysisWe should greet.assistantfinalHello there.", "Hello there."),
    "a mark of the template": ("Hello there.<|im_end|>", "Hello there."),
    "the end of Llama 2": ("Hello there.</s>", "Hello there."),
    "of Gemma": ("Hello there.<end_of_turn>\n", "Hello there."),
    "of DeepSeek": ("Hello there.<｜end▁of▁sentence｜>", "Hello there."),
    "a thought without end": ("Hello there. <think>And now I wonder", "Hello there."),
    "no tags": ("Is 3 < 5? Yes <b>. [1] analysis.", "Is 3 < 5? Yes <b>. [1] analysis."),
    "analysis as a word": ("analysis shows that it works.", "analysis shows that it works."),
}


def _call(**piece: Any) -> dict[str, Any]:
    function = {key: piece.pop(key) for key in ("name", "arguments") if key in piece}
    return {"tool_calls": [{**piece, "function": function}]}


OSLO, ROME = '{"city": "Oslo"}', '{"city": "Rome"}'
# Two calls of one reply, as servers stream them.
CALLS = {
    "by index": [
        _call(index=0, id="a", name="weather", arguments=""), _call(index=0, arguments=OSLO),
        _call(index=1, id="b", name="weather", arguments=""), _call(index=1, arguments=ROME),
    ],
    "all of index 0": [
        _call(index=0, id="a", name="weather", arguments=OSLO), _call(index=0, id="b", name="weather", arguments=ROME)
    ],
    "no index": [_call(id="a", name="weather", arguments=OSLO), _call(id="b", name="weather", arguments=ROME)],
    "no index and no id": [_call(name="weather", arguments=OSLO), _call(name="weather", arguments=ROME)],
    "index 0, no id, in pieces": [
        _call(index=0, name="weather", arguments=OSLO[:5]), _call(index=0, arguments=OSLO[5:]),
        _call(index=0, name="weather", arguments=ROME[:9]), _call(index=0, arguments=ROME[9:]),
    ],
    "one id for both": [
        _call(index=0, id="call", name="weather", arguments=OSLO),
        _call(index=0, id="call", name="weather", arguments=ROME),
    ],
    "id and name in every piece": [
        _call(index=0, id="a", name="weather", arguments=OSLO[:4]),
        _call(index=0, id="a", name="weather", arguments=OSLO[4:]),
        _call(index=1, id="b", name="weather", arguments=ROME),
    ],
    "arguments as an object": [
        _call(index=0, id="a", name="weather", arguments={"city": "Oslo"}),
        _call(index=1, id="b", name="weather", arguments={"city": "Rome"}),
    ],
    "as text": [
        {"content": f'<tool_call>\n{{"name": "weather", "arguments": {OSLO}}}\n</tool_call>'},
        {"content": f'<tool_call>{{"name": "weather", "arguments": {ROME}}}</tool_call>'},
    ],
}  # fmt: skip
