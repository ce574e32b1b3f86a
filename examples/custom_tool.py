"""Gives a language model a tool, here the time of day; `VoiceBridge.offer` takes the same objects.
Run it: python examples/custom_tool.py URL MODEL "What time is it?", URL of an OpenAI-compatible server up to /v1."""

import asyncio
import sys
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from actors.voice.config import LlmConfig
from actors.voice.llm import OpenAiModel, converse
from actors.voice.protocols import Message, Tool


async def time_of_day(arguments: dict[str, Any]) -> str:
    """What the model is told. An exception is told to it as well, and does not end the conversation."""
    return datetime.now(ZoneInfo(arguments.get("zone", "UTC"))).strftime("%H:%M")


CLOCK = Tool(
    name="time_of_day",
    description="The time of day now.",
    run=time_of_day,
    parameters={
        "type": "object",
        "properties": {"zone": {"type": "string", "description": "IANA name, such as Europe/Paris"}},
    },
)


async def main(base_url: str, model: str, question: str) -> None:
    llm = OpenAiModel(LlmConfig(engine="openai", model=model, base_url=base_url))
    async for piece in converse(llm, [Message("user", question)], [CLOCK]):
        print(piece, end="", flush=True)
    print()
    await llm.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
