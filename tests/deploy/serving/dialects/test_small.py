"""The small dialects: what their plugins send, and a hundred requests of each that nobody should send."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from livekit import api

from deploy.serving.dialects.form import uuid_of
from tests.deploy.agent_double import AGENT
from tests.deploy.serving.dialects.test_runway import TOKEN, livekit
from tests.deploy.serving.test_api import Open, claims, eventually, open_api
from tests.deploy.serving.test_webhook import ACCESS

__all__ = ["livekit", "open_api"]
SIGNED = api.AccessToken(ACCESS.key, ACCESS.secret).with_identity("agent").to_jwt()


def good(dialect: str, url: str) -> tuple[str, dict[str, Any], dict[str, str]]:
    """Path, body and headers, as the plugin sends them."""
    bearer = {"authorization": "Bearer k"}
    match dialect:
        case "bithuman":
            body = {
                "livekit_url": url,
                "livekit_token": TOKEN,
                "room_name": "lobby",
                "mode": "cpu",
                "agent_id": "amara",
            }
            return "/v1/bithuman", body, {"api-secret": "k"}
        case "anam":
            persona = {"type": "ephemeral", "name": "A", "avatarId": uuid_of("amara"), "llmId": "CUSTOMER_CLIENT_V1"}
            room = {"livekitUrl": url, "livekitToken": TOKEN}
            return "/v1/engine/session", {"personaConfig": persona, "environment": room}, bearer
        case "keyframe":
            body = {"livekit_url": url, "livekit_token": TOKEN, "room_name": "lobby", "persona_slug": "amara"}
            return "/v1/sessions/plugins/livekit", body | {"source_participant_identity": AGENT}, bearer
    body = {"provider": "lemonslice", "livekit_url": ACCESS.url, "room_name": "lobby", "room_sid": "RM_x"}
    body |= {"avatar_identity": "face", "avatar_name": "F", "agent_identity": AGENT, "avatar_id": "amara"}
    return "/avatar/sessions", body, {"authorization": f"Bearer {SIGNED}"}


SMALL = ("bithuman", "anam", "keyframe")


@pytest.mark.parametrize("dialect", SMALL)
def test_what_the_plugin_sends_begins_a_session(open_api: Open, livekit: str, dialect: str) -> None:
    client, manager, pipelines = open_api(api_key="k")
    path, body, headers = good(dialect, livekit)
    assert client.post(path, json=body).status_code == 401
    answer = client.post(path, json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    eventually(lambda: pipelines.running == 1)
    room = pipelines.started[0].room
    assert (room.token, room.agent) == (TOKEN, AGENT)
    (session,) = manager.sessions.all()
    assert session.id in answer.text and (session.character, session.dialect) == ("amara", dialect)
    assert client.post(path, json=body, headers=headers).status_code == 200 and len(manager.sessions.all()) == 1


def test_livekit_inference_mints_and_ends(open_api: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    async def known(url: str, token: str) -> None:
        assert url == ACCESS.url and claims(token)["sub"] == "face"

    monkeypatch.setattr("deploy.serving.dialects.rooms._ask", known)
    client, manager, pipelines = open_api(api_key="k")
    path, body, headers = good("inference", "")
    assert client.post(path, json=body, headers={"authorization": "Bearer k"}).status_code == 401
    answer = client.post(path, json=body, headers=headers).json()
    assert set(answer) == {"session_id", "provider_session_id", "terminate_token", "sample_rate"}
    eventually(lambda: pipelines.running == 1)
    assert claims(pipelines.started[0].room.token)["attributes"] == {"lk.publish_on_behalf": AGENT}
    end = {"provider": "x", "provider_session_id": answer["session_id"], "terminate_token": "no"}
    assert client.post(f"{path}/terminate", json=end, headers=headers).status_code == 404
    end["terminate_token"] = answer["terminate_token"]
    assert client.post(f"{path}/terminate", json=end, headers=headers).status_code == 200
    eventually(lambda: pipelines.running == 0 and all(s.over for s in manager.sessions.all()))


def bent(value: Any) -> Iterator[Any]:
    """A body with one thing wrong, everywhere in turn."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield {k: v for k, v in value.items() if k != key}
            for other in bent(inner):
                yield value | {key: other}
    yield from (None, 7, [], {}, True, "", "x" * 5000, "\x00☃", [value], -1.5)


@pytest.mark.parametrize("dialect", [*SMALL, "inference"])
def test_malformed_requests_leave_nothing(open_api: Open, livekit: str, dialect: str) -> None:
    client, manager, _ = open_api()
    path, body, headers = good(dialect, livekit)
    free = ("mode", "model", "source_participant_identity", "sessionOptions", "type", "name", "llmId", "provider")
    free += ("room_sid", "avatar_name", "room_name", "agent_identity", "avatar_identity")
    count = 0
    for wrong in itertools.chain(bent(body), ({**body, "image": "aGk="}, {**body, "livekit_url": "ws://10.0.0.1"})):
        changed = [k for k in body if not isinstance(wrong, dict) or wrong.get(k) != body[k]]
        inner = wrong.get("personaConfig") if isinstance(wrong, dict) else None
        if isinstance(inner, dict) and inner.get("avatarId") == uuid_of("amara"):
            continue  # what else a persona says is Anam's business
        if changed and set(changed) <= set(free):
            continue  # may be anything, or is checked beside the token
        if dialect == "inference" and not changed:
            continue
        answer = client.post(path, json=wrong, headers=headers)
        assert answer.status_code in (400, 404) and set(answer.json()) == {"error"}, (wrong, answer.text)
        assert isinstance(answer.json()["error"], str) and "Traceback" not in answer.text
        count += 1
    for kind in ("text/plain", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded", ""):
        for data in (b"", b"{", b"\xff\xfe", b"a=b", b"null", b"[]", b'"x"', b"{}" * 50, b"0" * 999, b"--x--"):
            answer = client.post(path, content=data, headers=headers | {"content-type": kind})
            assert answer.status_code == 400 and isinstance(answer.json()["error"], str), (kind, data, answer.text)
            count += 1
    assert count > 70 and not manager.sessions.all()
