"""HTTP requests to other servers, at addresses as users give them."""

from __future__ import annotations

from functools import cache
from typing import Any
from urllib.parse import urlsplit

import httpx2

from characters.errors import UserError

# What a request raises if no server answers. ValueError: a name that no host can have, or an answer that is not JSON.
NO_ANSWER = (httpx2.HTTPError, httpx2.InvalidURL, ValueError)


def check_address(url: str, what: str) -> str:
    """Returns `url` without slashes at its end.

    Raises:
        UserError: it is not http:// or https:// with a host and, if any, a port. The message calls it `what`.
    """
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # half an IPv6 address; a port that is not a number, or is too large
        good = False
    if not good or not url.isprintable() or " " in url:
        raise UserError(f"{what} must begin with http:// or https:// and name a host, which {url!r} does not")
    return url.rstrip("/")


def request(url: str, method: str = "GET", *, timeout: float, **options: Any) -> httpx2.Response:
    """Send a request, and read the whole answer.

    Args:
        url, method: where and what.
        timeout: seconds to connect, and seconds to wait for each piece of the answer.
        options: of `httpx2.Client.request`: `json`, `headers`.

    Raises:
        httpx2.HTTPStatusError: the answer is an error of the server, status 400 or above.
        httpx2.HTTPError, httpx2.InvalidURL, ValueError: there is no answer; together they are `NO_ANSWER`.
    """
    return _client().request(method, url, timeout=timeout, **options).raise_for_status()


@cache
def _client() -> httpx2.Client:
    """One for the process: each client loads the system's certificates, which takes 0.1 s."""
    return httpx2.Client(follow_redirects=True, limits=httpx2.Limits(max_keepalive_connections=0))
