"""Addresses of servers, as users give them."""

from __future__ import annotations

import urllib.parse

from characters.errors import UserError


def check_address(url: str, what: str) -> str:
    """Returns `url` without slashes at its end.

    Raises:
        UserError: it is not http:// or https:// with a host and, if any, a port; the message calls it `what`.
    """
    try:
        parts = urllib.parse.urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # half an IPv6 address; a port that is no number, or too large
        good = False
    if not good or not url.isprintable() or " " in url:
        raise UserError(f"{what} must begin with http:// or https:// and name a host, which {url!r} does not")
    return url.rstrip("/")
