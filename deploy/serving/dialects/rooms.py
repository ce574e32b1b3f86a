"""Rooms of other people: which LiveKit servers an avatar may be sent to, and whether it would be let in.

Whoever may ask for a session names the server, so the name is checked before anything is sent there: an application
that calls any address it is told is a way into the network around it.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from urllib.parse import urlsplit, urlunsplit

import httpx2
import jwt

from deploy.serving.settings import Settings

_SECONDS = 4.0
_SCHEMES = {"ws": "http", "wss": "https", "http": "http", "https": "https"}
ON_BEHALF = "lk.publish_on_behalf"  # attribute of an avatar's participant: identity of its agent


class RoomRefused(Exception):
    """An avatar cannot go there; the message says why."""


@dataclass(frozen=True, slots=True)
class External:
    """A room of somebody else, as an avatar's session knows it.

    Attributes:
        url: of the LiveKit server.
        token: the avatar's own access.
        room: name of the room.
        identity: the avatar's.
        agent: identity of the agent that it speaks for; "" if it is not known.
    """

    url: str
    token: str = field(repr=False)
    room: str = ""
    identity: str = ""
    agent: str = ""

    @property
    def place(self) -> tuple[str, str, str]:
        """Two avatars of one place would push each other out."""
        return self.url, self.room, self.identity


async def inspect(url: str, token: str, settings: Settings, room: str = "", agent: str = "") -> External:
    """Check a room before an avatar goes there.

    Args:
        url: of its LiveKit server, ws://, wss://, http:// or https://.
        token: the avatar's.
        settings: `avatar_rooms` says which servers are allowed.
        room, agent: as the request names them; if it does not, the token does.

    Raises:
        RoomRefused: a wrong address or token, a server that is not allowed, does not answer, or refuses the token.
    """
    try:
        claims = jwt.decode(token, options={"verify_signature": False})
        video, attributes = claims.get("video") or {}, claims.get("attributes") or {}
        identity, granted = str(claims.get("sub") or ""), str(video.get("room") or "")
        behalf = str(attributes.get(ON_BEHALF) or "")
    except (jwt.PyJWTError, AttributeError):
        raise RoomRefused("the token is not one of LiveKit") from None
    if not identity or not granted or not video.get("roomJoin"):
        raise RoomRefused("the token names no participant, or no room that it may join")
    if room and room != granted:
        raise RoomRefused(f"the token is for another room than {room!r}")
    address = await allowed(url, settings)
    await _ask(address, token)
    return External(address, token, granted, identity, agent or behalf)


async def allowed(url: str, settings: Settings) -> str:
    """The URL as it is to be called: for ws:// with the address that was checked, so that no other name server's answer
    counts later; for wss:// with the name, which the server's certificate proves.

    Raises:
        RoomRefused: it is no URL of a LiveKit server, or one that `avatar_rooms` does not allow.
    """
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").rstrip("."), parts.port
    except ValueError:
        host = ""
    if not host or parts.scheme not in _SCHEMES or parts.username or parts.query or parts.fragment or " " in url:
        raise RoomRefused("the url of a LiveKit server begins with ws:// or wss:// and names a host")
    scheme = {"http": "ws", "https": "wss"}.get(parts.scheme, parts.scheme)
    port = port or (443 if scheme == "wss" else 80)
    own = [urlsplit(known) for known in (settings.livekit.url, settings.livekit.public_url) if known]
    known = [(one.hostname, one.port or (443 if one.scheme in ("wss", "https") else 80)) for one in own]
    if (host, port) in known:
        return urlunsplit((scheme, parts.netloc, parts.path.rstrip("/"), "", ""))
    addresses = await _resolve(host, port)
    patterns = [pattern.strip().lower() for pattern in settings.avatar_rooms.split(",") if pattern.strip()]
    named = any(pattern != "any" and fnmatchcase(host.lower(), pattern) for pattern in patterns)
    loopback = all(address.is_loopback for address in addresses)
    everywhere = "any" in patterns and all(address.is_global for address in addresses)
    if not (named or loopback or everywhere):
        raise RoomRefused(
            f"avatars may not go to {host}: only to this server's own LiveKit and to loopback, unless the setting"
            " avatar_rooms allows more"
        )
    if scheme == "wss":
        return urlunsplit((scheme, parts.netloc, parts.path.rstrip("/"), "", ""))
    one = addresses[0]
    pinned = f"[{one}]:{port}" if one.version == 6 else f"{one}:{port}"
    return urlunsplit((scheme, pinned, parts.path.rstrip("/"), "", ""))


async def _resolve(host: str, port: int) -> Sequence[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    try:
        return [ipaddress.ip_address(host)]
    except ValueError:
        pass
    try:
        async with asyncio.timeout(_SECONDS):
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError, TimeoutError):
        raise RoomRefused(f"there is no host {host}") from None
    return [ipaddress.ip_address(str(address[0]).partition("%")[0]) for *_, address in found]


async def _ask(url: str, token: str) -> None:
    """LiveKit's own question whether a token would be let in. An answer that sends us elsewhere is no answer."""
    where = _SCHEMES[urlsplit(url).scheme] + url[url.index(":") :] + "/rtc/validate"
    try:
        async with asyncio.timeout(_SECONDS), httpx2.AsyncClient(follow_redirects=False, timeout=_SECONDS) as client:
            answer = await client.get(where, headers={"Authorization": f"Bearer {token}"})
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError, TimeoutError):
        raise RoomRefused("no LiveKit server answers at that url") from None
    if answer.status_code == 401:
        raise RoomRefused("the LiveKit server refuses the token")
    if answer.status_code != 200:
        raise RoomRefused("what answers at that url is no LiveKit server")
