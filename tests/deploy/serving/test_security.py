"""SECURITY.md against the code: each number, name and promise of its table that can be asked for without a network.

What it says of sessions, rooms, clients, hosts, frames and webhooks is tried in `test_api.py` and `test_webhook.py`.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from characters.media.portrait import MAX_PIXELS
from deploy.cli.up import up
from deploy.serving import gate, livekit_server, sessions, tokens, webhook
from deploy.serving.api import _WEBHOOK_BODY, create_api
from deploy.serving.records import Records
from deploy.serving.session_manager import _RECONCILE_TICKS, _TICK_SECONDS, SessionManager
from deploy.serving.settings import SECRETS, Settings
from tests.deploy.serving.test_api import FakePipelines
from tests.deploy.serving.test_webhook import ACCESS
from tests.deploy.store import FakeStore

ROOT = Path(__file__).resolve().parents[3]
TEXT = " ".join((ROOT / "SECURITY.md").read_text().split())
# The webhook and LiveKit Inference's routes ask for a signature, `consume` for a session's own key.
OPEN = {
    "/healthz",
    "/v1/characters/{slug}/portrait",
    "/livekit/webhook",
    "/v1/realtime_sessions/{session_id}/consume",
    "/avatar/sessions",
    "/avatar/sessions/terminate",
}


def default(name: str) -> float:
    return float(inspect.signature(gate.Gate).parameters[name].default)


@pytest.mark.parametrize(
    ("claim", "true"),
    [
        ("64 KiB (`max_body`; webhooks 1 MB), 10 s, 100 bodies at once", (65_536, 1_000_000, 10, 100)),
        ("4 sessions for each client (`sessions_per_client`)", (4,)),
        ("`join_s` and a minute (2 minutes)", (120,)),
        ("a character's within 7 days", (7,)),
        ("A room holds three participants", (3,)),
        ("an age of 300 s at most", (300,)),
        ("at most 64 million pixels", (64_000_000,)),
        ("every 5 s at the latest, for the ten minutes", (5, 600)),
        ("newest 64 KiB", (65_536,)),
        ("`characters-` and 144 random bits", ("characters-", 144)),
        ("Ids have 96 random bits", (96,)),
    ],
)
def test_numbers_are_those_of_the_code(claim: str, true: tuple[object, ...]) -> None:
    settings = Settings(ACCESS)
    made = sessions.Sessions(settings.admission, 1, 1, 1, lambda: 0.0).create("amara")
    bits = {len(made.id) * 6, (len(made.room) - len(sessions.ROOMS)) * 6}
    known = {
        *(settings.max_body, _WEBHOOK_BODY, default("seconds"), default("at_once"), settings.sessions_per_client),
        *(settings.join_s + 60, tokens._CHARACTER_TTL.days, tokens._PARTICIPANTS, webhook._OLDEST_SECONDS, MAX_PIXELS),
        *(_RECONCILE_TICKS * _TICK_SECONDS, sessions._KEPT_SECONDS, livekit_server._LOG_BYTES, sessions.ROOMS, *bits),
    }
    assert claim in TEXT and set(true) <= known


def test_only_what_is_named_is_open_without_a_key() -> None:
    manager = SessionManager(Settings(ACCESS, api_key="k"), FakePipelines(), (64, 48), Records("test", FakeStore()))
    described = create_api(manager).openapi()["paths"]
    keyless = {path for path, ways in described.items() if not any("parameters" in way for way in ways.values())}
    asks = {
        path
        for path, ways in described.items()
        if all(
            {"authorization", "x-api-key"} <= {p["name"] for p in way.get("parameters", [])} for way in ways.values()
        )
    }
    assert asks == set(described) - OPEN and keyless <= OPEN
    assert "the page and its files, `/healthz`, portraits, and the API's description (`/openapi.json`)" in TEXT


def test_settings_and_variables_that_it_names_exist() -> None:
    for name in ("max_body", "sessions_per_client", "max_session_s", "join_s", "cors", "hosts", "frame_ancestors"):
        assert f"`{name}" in TEXT and hasattr(Settings(ACCESS), name)
    assert {"api_key", "tenant_keys", "livekit"} == set(SECRETS)
    code = "\n".join(path.read_text() for path in (ROOT / "deploy").rglob("*.py"))
    for variable in set(re.findall(r"`((?:CHARACTERS|LIVEKIT)_[A-Z_]+)`", TEXT)):
        assert variable in code, variable


def test_up_keeps_to_loopback_and_the_page_to_its_own_scripts() -> None:
    host = next(option for option in up.params if option.name == "host")
    assert host.default == "127.0.0.1"
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', (ROOT / "deploy/web/index.html").read_text())
    assert policy is not None
    rules = dict(rule.strip().partition(" ")[::2] for rule in policy[1].split(";"))
    assert rules["default-src"] == "'self'" and "script-src" not in rules
