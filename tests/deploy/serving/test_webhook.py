from __future__ import annotations

import base64
import datetime
import hashlib
import json
from collections.abc import Callable

import pytest
from livekit import api

from deploy.serving.settings import LivekitAccess
from deploy.serving.webhook import WebhookRejected, WebhookVerifier
from tests.deploy.clock import Clock

ACCESS = LivekitAccess("ws://127.0.0.1:7880", "key", "a secret of more than 32 characters")


def sign(body: bytes, access: LivekitAccess = ACCESS) -> str:
    """As livekit-server does: a token that holds the body's hash."""
    digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
    token = api.AccessToken(access.key, access.secret).with_sha256(digest)
    return token.with_ttl(datetime.timedelta(minutes=5)).to_jwt()


def event(key: str = "EV_1", created: int = 1000, kind: str = "participant_joined") -> bytes:
    body = {
        "event": kind,
        "room": {"name": "lobby"},
        "participant": {"identity": "ada"},
        "id": key,
        "createdAt": str(created),
    }
    return json.dumps(body).encode()


@pytest.fixture
def gate() -> WebhookVerifier:
    return WebhookVerifier(ACCESS, Clock())


def test_a_signed_webhook_is_let_through_once(gate: WebhookVerifier) -> None:
    body = event()
    received = gate.receive(body, sign(body))
    assert (received.event, received.room.name, received.participant.identity) == ("participant_joined", "lobby", "ada")
    with pytest.raises(WebhookRejected, match="before") as refusal:
        gate.receive(body, sign(body))
    assert (refusal.value.status, refusal.value.code) == (409, "replayed")
    gate.receive(event("EV_2"), f"Bearer {sign(event('EV_2'))}")


@pytest.mark.parametrize(
    ("body", "authorize", "code"),
    [
        (event(), lambda body: None, "unsigned"),
        (event(), lambda body: "", "unsigned"),
        (event(), lambda body: "nonsense", "bad_signature"),
        (event(), lambda body: sign(event("EV_9")), "bad_signature"),
        (event(), lambda body: sign(body, LivekitAccess("", "key", "some other secret " * 2)), "bad_signature"),
        (event(), lambda body: sign(body, LivekitAccess("", "other", ACCESS.secret)), "bad_signature"),
        (b"\xff\xfe", sign, "bad_signature"),
        (b"[1]", sign, "bad_signature"),
        (event(""), sign, "no_id"),
        (event(created=600), sign, "stale"),
        (event(created=1400), sign, "stale"),
    ],
)
def test_everything_else_is_refused(
    gate: WebhookVerifier, body: bytes, authorize: Callable[[bytes], str | None], code: str
) -> None:
    # Signed here and not in the table: a signature grows old while other tests run.
    with pytest.raises(WebhookRejected) as refusal:
        gate.receive(body, authorize(body))
    assert refusal.value.code == code
