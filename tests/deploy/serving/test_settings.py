from __future__ import annotations

import socket
from pathlib import Path

import pytest

from characters.errors import UserError
from deploy.serving.settings import free_ports, is_free, load_settings


def test_texts_become_numbers_and_keys_are_random() -> None:
    settings = load_settings({"pipelines": "2", "grace_s": "5", "profile": "laptop"}, {})
    assert (settings.pipelines, settings.grace_s) == (2, 5.0)
    assert settings.livekit.own
    assert settings.livekit.url.startswith("ws://127.0.0.1:")
    assert settings.livekit.secret != load_settings({}, {}).livekit.secret
    assert settings.livekit.secret not in repr(settings)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"pipelins": "2"}, "did you mean 'pipelines'"),
        ({"pipelines": "two"}, "not of type int"),
        ({"pipelines": "0"}, "at least 1"),
        ({"http_port": "99999"}, "ports"),
        ({"sessions_per_client": "-1"}, "not be negative"),
        ({"frame_ancestors": "'self'; script-src x"}, "separated by spaces"),
        ({"frame_ancestors": "a\r\nb: c"}, "separated by spaces"),
        ({"api_key": "x"}, "unknown setting"),
        ({"admission": "defalt"}, "did you mean 'default'"),
    ],
)
def test_wrong_settings_are_the_users_error(args: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_settings(args, {})


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"LIVEKIT_URL": "ws://x:7880"}, "must be too"),
        ({"LIVEKIT_URL": "http://x", "LIVEKIT_API_KEY": "k", "LIVEKIT_API_SECRET": "s"}, "ws://"),
        ({"LIVEKIT_API_KEY": "k"}, "belong together"),
        ({"LIVEKIT_API_KEY": "k", "LIVEKIT_API_SECRET": "short"}, "32 characters"),
        ({"CHARACTERS_API_KEYS": "gold:k trial"}, "name:key"),
        ({"CHARACTERS_API_KEYS": "gold:k trial:k"}, "no key twice"),
    ],
)
def test_half_of_an_access_is_the_users_error(environment: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_settings({}, environment)


def test_who_may_come_in_is_named_and_keys_come_from_the_environment(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("queue: 100\n")
    settings = load_settings({"admission": str(own)}, {"CHARACTERS_API_KEYS": "gold:secret1 trial:secret2"})
    assert settings.admission.queue == 100
    assert settings.tenant_keys == {"gold": "secret1", "trial": "secret2"}
    assert "secret1" not in repr(settings)


def test_another_server_is_used_as_it_is() -> None:
    environment = {
        "LIVEKIT_URL": "wss://live.example",
        "LIVEKIT_API_KEY": "k",
        "LIVEKIT_API_SECRET": "s",
        "LIVEKIT_PUBLIC_URL": "wss://public.example",
        "CHARACTERS_API_KEY": "let me in",
    }
    settings = load_settings({}, environment)
    assert not settings.livekit.own
    assert settings.livekit.browser_url == "wss://public.example"
    assert settings.api_key == "let me in"


def test_taken_ports_are_passed_over() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert not is_free(port)
        assert free_ports(port - 1) > port
