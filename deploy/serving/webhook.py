"""LiveKit's webhooks: whether the server sent a request, and whether it came before."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from livekit import api

from deploy.serving.settings import LivekitAccess

_OLDEST_SECONDS = 300.0
_REMEMBERED = 10_000


class WebhookRejected(Exception):
    """A webhook that is not acted on. `status` is HTTP's; `code` is stable."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


class WebhookVerifier:
    """Accepts a webhook that the server has signed, once, for five minutes.

    Args:
        access: to the server whose signature counts.
        clock: seconds since 1970.
    """

    def __init__(self, access: LivekitAccess, clock: Callable[[], float] = time.time) -> None:
        self._verifier = api.TokenVerifier(access.key, access.secret)
        self._receiver = api.WebhookReceiver(self._verifier)
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._clock = clock

    def check(self, authorization: str | None) -> str:
        """Check who sent a request, before its body is read.

        Args:
            authorization: the header of that name.

        Returns:
            The token in it, which names the body's digest.

        Raises:
            WebhookRejected: there is no token, or it is not the server's.
        """
        token = (authorization or "").removeprefix("Bearer ").strip()
        if not token:
            raise WebhookRejected(401, "unsigned", "the webhook is not signed")
        try:
            self._verifier.verify(token)
        except Exception as error:  # the library raises whatever its parts do
            raise WebhookRejected(401, "bad_signature", f"the webhook's signature is not valid: {error}") from error
        return token

    def receive(self, body: bytes, authorization: str | None) -> api.WebhookEvent:
        """Check a request.

        Args:
            body: as it came.
            authorization: the header of that name.

        Raises:
            WebhookRejected: the signature is missing or wrong, the body is not the signed one, or the webhook is older
                than five minutes or was received before.
        """
        token = self.check(authorization)
        try:
            event = self._receiver.receive(body.decode(), token)
        except Exception as error:  # the library raises whatever its parts do
            raise WebhookRejected(401, "bad_signature", f"the webhook's signature is not valid: {error}") from error
        if not event.id:
            raise WebhookRejected(400, "no_id", "the webhook has no id")
        if abs(self._clock() - event.created_at) > _OLDEST_SECONDS:
            raise WebhookRejected(401, "stale", "the webhook is too old")
        if event.id in self._seen:
            raise WebhookRejected(409, "replayed", "the webhook has been received before")
        self._seen[event.id] = None
        while len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)
        return event
