import asyncio
import re

import pytest

from tests.actors.voice.fake_server import call, serving, text
from tests.examples.example import load


def test_the_model_is_told_what_the_tool_says(capsys: pytest.CaptureFixture[str]) -> None:
    with serving() as server:
        server.answers = [call("time_of_day", '{"zone": "Europe/Paris"}'), text("It is ", "late.")]
        asyncio.run(load("custom_tool").main(server.url, "some-model", "What time is it in Paris?"))
    assert capsys.readouterr().out == "It is late.\n"
    assert server.requests[0]["tools"][0]["function"]["name"] == "time_of_day"
    told = server.requests[1]["messages"][-1]
    assert told["role"] == "tool" and re.fullmatch(r"\d\d:\d\d", told["content"])
