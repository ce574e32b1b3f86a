from __future__ import annotations

from typing import Any

import pytest

from actors.pipeline.session import RoomAddress
from characters.character import load_character
from characters.errors import UserError
from deploy.serving.live import Live, changed


def test_what_is_changed_is_changed_and_the_rest_stays() -> None:
    given = {"bitrate": 800_000, "characters": {"ruby": {"persona": "You are shy.", "voice": {"pitch": 2.0}}}}
    live = changed(Live(), given, "ingress")
    ruby, miso = load_character("ruby").character, load_character("miso").character
    shy = live.applied("ruby", ruby)
    assert live.bitrate == 800_000
    assert (shy.persona, shy.voice.pitch) == ("You are shy.", 2.0)
    assert (shy.name, shy.voice.engine) == (ruby.name, ruby.voice.engine)
    assert live.applied("miso", miso) == miso
    assert changed(Live(), {}, "ingress") == Live(RoomAddress().bitrate)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"bitrates": 1}, "bitrates"),
        ({"bitrate": "fast"}, "fast"),
        ({"bitrate": 1}, "at least 10000"),
        ({"characters": {"ruby": {"voice": {"pitch": 99}}}}, "semitones"),
        ({"characters": {"ruby": {"mood": "shy"}}}, "mood"),
    ],
)
def test_what_is_wrong_is_the_users_error(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        changed(Live(), given, "ingress").applied("ruby", load_character("ruby").character)
