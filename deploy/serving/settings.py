"""Settings of the application: from `serve run deploy.app:build key=value` and, for all secrets, the environment."""

from __future__ import annotations

import dataclasses
import errno
import os
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from characters.errors import UserError, did_you_mean
from deploy.planning.waiting import AdmissionConfig, load_admission

LOOPBACK = "127.0.0.1"
HTTP_PORT, LIVEKIT_PORT = 8000, 7880
SECRETS = ("livekit", "api_key", "tenant_keys")  # settings that come from the environment only


@dataclass(frozen=True)
class LivekitAccess:
    """How to reach a LiveKit server.

    Attributes:
        url: for the application, ws:// or wss://.
        key, secret: its API key.
        public_url: for browsers; if empty, they get `url`.
        own: whether the application starts the server itself.
        port: of its own server for HTTP; the next one is for media over UDP.
    """

    url: str
    key: str
    secret: str = field(repr=False)
    public_url: str = ""
    own: bool = False
    port: int = LIVEKIT_PORT

    @property
    def browser_url(self) -> str:
        """The URL that browsers are told."""
        return self.public_url or self.url


@dataclass(frozen=True)
class Settings:
    """All settings of the application.

    Attributes:
        profile: name of a file in conf/deploy, or a path to one.
        pipelines: sessions at a time, to begin with; Serve can scale them later.
        admission: who may come in and who may wait: name of a file in conf/admission, or a path to one.
        grace_s: seconds that the character stays after the last user has left.
        join_s: seconds that a ready session waits for its user.
        poll_s: seconds after which a queued user who has not asked again has gone.
        sessions_per_client: sessions that one client may have running and waiting; 0 = any number. A client is the
            holder of a key that has a name, or else an address. Not for names below `tenants` of the admission, which
            have their own numbers, and not for loopback: that is you, or a proxy that does not say for whom it asks.
        max_session_s: seconds after which a conversation ends; 0 = never.
        drain_s: seconds that a pipeline which is removed, or replaced by a newer version, may take to finish its
            conversation. After that the conversation moves to another pipeline.
        http_port: port that Serve listens on; LiveKit's webhooks go there.
        livekit_port: port of the application's own LiveKit server; 0 = 7880, or the next one that is free.
        seed: seed of the noise and of the idle motion.
        cors: comma-separated origins that may call the API from a browser; none by default.
        frame_ancestors: sites that may show the page in a frame, as in the header Content-Security-Policy.
        hosts: comma-separated names by which the server may be called if it has no API key, besides addresses and
            "localhost": another site whose name is made to point here gets no answer.
        avatar_rooms: comma-separated hosts of LiveKit servers, besides our own and loopback, to whose rooms an agent's
            avatar may be sent: names or patterns such as "*.livekit.cloud"; "any" for every public address.
        avatar_names: comma-separated "name=character": what clients of other APIs call our characters, e.g. Runway's
            presets; "*" is any other name. A character's slug is known without it.
        max_body: bytes that a request's body may have.
        api_key: asked for by the API if not empty. From CHARACTERS_API_KEY.
        tenant_keys: API keys by the name of who holds them, see `AdmissionConfig.tenants`. From CHARACTERS_API_KEYS,
            "name:key name:key".
        livekit: see `LivekitAccess`. From LIVEKIT_URL, LIVEKIT_API_KEY, LIVEKIT_API_SECRET and LIVEKIT_PUBLIC_URL.
    """

    livekit: LivekitAccess
    profile: str = "laptop"
    pipelines: int = 1
    admission: AdmissionConfig = field(default_factory=lambda: load_admission("default"))
    grace_s: float = 20.0
    join_s: float = 60.0
    poll_s: float = 30.0
    sessions_per_client: int = 4
    max_session_s: float = 0.0
    drain_s: float = 86_400.0
    http_port: int = HTTP_PORT
    livekit_port: int = 0
    seed: int = 0
    cors: str = ""
    frame_ancestors: str = "'self'"
    hosts: str = ""
    avatar_rooms: str = ""
    avatar_names: str = ""
    max_body: int = 65_536
    api_key: str = field(default="", repr=False)
    tenant_keys: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.pipelines < 1:
            raise UserError("pipelines must be at least 1")
        if min(self.grace_s, self.join_s, self.poll_s, self.drain_s) <= 0 or self.max_body < 1024:
            raise UserError("grace_s, join_s, poll_s and drain_s must be positive, max_body at least 1024")
        if not self.frame_ancestors.isprintable() or set(self.frame_ancestors) & set(";,"):
            raise UserError("frame_ancestors is a list of sites, separated by spaces, or 'none'")
        if min(self.sessions_per_client, self.max_session_s) < 0:
            raise UserError("sessions_per_client and max_session_s must not be negative")
        if not 0 < self.http_port < 65536 or not 0 <= self.livekit_port < 65535:
            raise UserError("http_port and livekit_port must be ports")


def load_settings(args: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> Settings:
    """Check `args` (texts, as Serve hands them on) and add what the environment holds.

    Raises:
        UserError: an unknown key, a value of the wrong type or out of range, or half of an API key.
    """
    fields = {f.name: f for f in dataclasses.fields(Settings) if f.name not in SECRETS}
    values: dict[str, Any] = {}
    for key, value in args.items():
        if key not in fields:
            raise UserError(f"unknown setting {key!r}; {did_you_mean(key, list(fields))}")
        convert: Any = {"int": int, "float": float, "str": str, "AdmissionConfig": load_admission}[
            str(fields[key].type)
        ]
        try:
            values[key] = convert(value)
        except (TypeError, ValueError):
            raise UserError(f"setting {key} is {value!r}, which is not of type {fields[key].type}") from None
    livekit = _livekit(environment, int(values.get("livekit_port", 0)))
    return Settings(
        livekit,
        **values,
        api_key=environment.get("CHARACTERS_API_KEY", ""),
        tenant_keys=_tenant_keys(environment.get("CHARACTERS_API_KEYS", "")),
    )


def _tenant_keys(text: str) -> dict[str, str]:
    keys: dict[str, str] = {}
    for part in text.split():
        name, _, key = part.partition(":")
        if not name or not key or name in keys or key in keys.values():
            raise UserError("CHARACTERS_API_KEYS must look like 'name:key name:key', no name and no key twice")
        keys[name] = key
    return keys


def _livekit(environment: Mapping[str, str], port: int) -> LivekitAccess:
    url = environment.get("LIVEKIT_URL", "")
    key, secret = environment.get("LIVEKIT_API_KEY", ""), environment.get("LIVEKIT_API_SECRET", "")
    public = environment.get("LIVEKIT_PUBLIC_URL", "")
    if bool(key) != bool(secret):
        raise UserError("LIVEKIT_API_KEY and LIVEKIT_API_SECRET belong together: set both or neither")
    if url:
        if not key:
            raise UserError("LIVEKIT_URL is set, so LIVEKIT_API_KEY and LIVEKIT_API_SECRET must be too")
        if not url.startswith(("ws://", "wss://")):
            raise UserError(f"LIVEKIT_URL must begin with ws:// or wss://, not {url!r}")
        return LivekitAccess(url, key, secret, public)
    if secret and len(secret) < 32:
        raise UserError("LIVEKIT_API_SECRET must have at least 32 characters")
    port = port or free_ports(LIVEKIT_PORT)
    key, secret = key or f"key{secrets.token_hex(6)}", secret or secrets.token_urlsafe(32)
    return LivekitAccess(f"ws://{LOOPBACK}:{port}", key, secret, public, own=True, port=port)


def free_ports(first: int, count: int = 2) -> int:
    """The lowest port from `first` on that is free on loopback together with the `count - 1` after it.

    Raises:
        UserError: none within the next 100.
    """
    for port in range(first, first + 100):
        if all(is_free(port + i) for i in range(count)):
            return port
    raise UserError(f"no free ports from {first} to {first + 100}: stop what is listening there")


def is_free(port: int, host: str = LOOPBACK) -> bool:
    """Whether nobody listens on a TCP port or has bound the UDP port."""
    return _bind_error(port, host) is None


def check_port(port: int, host: str) -> None:
    """Check that a page can be served there.

    Raises:
        UserError: the port is taken or reserved, or `host` is not an address of this machine.
    """
    error = _bind_error(port, host)
    if error is None:
        return
    if error.errno == errno.EADDRINUSE:
        raise UserError(f"port {port} is taken by another program: stop it, or use --port")
    if error.errno == errno.EACCES:
        raise UserError(f"port {port} is reserved for the system: use --port with 1024 or above")
    raise UserError(
        f"cannot serve the page at {host!r}: {error.strerror or error}; use --host with 127.0.0.1 or 0.0.0.0"
    )


def _bind_error(port: int, host: str = LOOPBACK) -> OSError | None:
    """Why a TCP port cannot be listened on, or its UDP port be bound; None if both can."""
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(socket.AF_INET, kind) as probe:
            if kind == socket.SOCK_STREAM:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                return error
            except UnicodeError as error:  # not the name of a host: a part of it is empty or too long
                return OSError(str(error))
    return None
