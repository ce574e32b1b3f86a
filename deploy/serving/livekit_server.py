"""livekit-server: finds it, installs it, and runs it on loopback."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from pathlib import Path

from characters.character import user_folder
from characters.cli.waiting import Waiting
from characters.errors import UserError
from deploy.serving.settings import LOOPBACK, LivekitAccess

PROGRAM = "livekit-server"
MODULE = "github.com/livekit/livekit-server/cmd/server"
VERSION = "v1.13.5"  # the newest that `go install` takes: later ones replace a dependency
THREE_WAYS = (
    f"there is no {PROGRAM}; get it in one of three ways: (1) install Go (https://go.dev/dl) and run "
    "`characters livekit install`; (2) put the program of a release "
    "(https://github.com/livekit/livekit/releases) on your PATH; (3) set LIVEKIT_URL, LIVEKIT_API_KEY and "
    "LIVEKIT_API_SECRET to a server that is already running"
)
_BUILD_SECONDS = 1800.0
_START_SECONDS = 20.0
_STOP_SECONDS = 5.0
_LOG_BYTES = 65_536  # the newest words of the server, to tell why it does not start
# The server's own first moments, in a process that has no threads: Linux kills it when the thread that started it ends.
# 1 is PR_SET_PDEATHSIG.
_LAUNCH = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


def program_folder() -> Path:
    """The folder into which `characters livekit install` puts the program."""
    return user_folder() / "bin"


def find_server() -> Path | None:
    """The program: the one that we installed, or else the one on PATH; None if there is none."""
    with contextlib.suppress(UserError):  # a user without a home folder
        own = program_folder() / PROGRAM
        if own.is_file() and os.access(own, os.X_OK):
            return own
    found = shutil.which(PROGRAM)
    return Path(found) if found else None


def require_server() -> Path:
    """The program. Raises UserError, naming the three ways to get it, if there is none."""
    found = find_server()
    if found is None:
        raise UserError(THREE_WAYS)
    return found


def install_server() -> Path:
    """Build the program with Go, which takes minutes the first time; stderr says how far it is.

    Raises:
        UserError: Go is missing, or could not build it.
    """
    go = shutil.which("go")
    if go is None:
        raise UserError(THREE_WAYS)
    folder = program_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".build.", dir=folder) as work:
        environment = os.environ | {"GOBIN": work}
        command = [go, "install", "-v", f"{MODULE}@{VERSION}"]  # -v: a line for each package that is compiled
        said: deque[str] = deque(maxlen=8)
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        ) as build:
            late = threading.Timer(_BUILD_SECONDS, build.kill)
            late.daemon = True
            late.start()
            try:
                with Waiting(f"building {PROGRAM}") as waiting:
                    assert build.stdout is not None
                    for count, line in enumerate(build.stdout, 1):
                        said.append(line.strip())
                        waiting.detail = f"{count} packages, now {line.split()[-1] if line.split() else ''}"
                    build.wait()
                    if build.returncode:
                        raise UserError(
                            f"go install {MODULE}@{VERSION} failed: {' '.join(said)} Otherwise: {THREE_WAYS}"
                        )
            finally:
                late.cancel()
                build.kill()
        built = Path(work) / "server"
        if not built.is_file():
            raise UserError(f"go install {MODULE}@{VERSION} made no program. Otherwise: {THREE_WAYS}")
        os.replace(built, folder / PROGRAM)
    return folder / PROGRAM


def server_config(access: LivekitAccess, webhook: str) -> str:
    """The server's configuration as JSON (which is YAML): loopback only, no STUN, one port for each kind of transport.

    Args:
        access: keys and port.
        webhook: URL that the server reports to; "" for none.
    """
    config: dict[str, object] = {
        "port": access.port,
        "bind_addresses": [LOOPBACK],
        "keys": {access.key: access.secret},
        "rtc": {
            "tcp_port": 0,  # media over TCP would listen on all interfaces, and loopback loses no packets
            "udp_port": access.port + 1,
            "node_ip": LOOPBACK,
            "use_external_ip": False,
            "enable_loopback_candidate": True,
            "interfaces": {"includes": ["lo", "lo0"]},
            "stun_servers": [],
        },
        "room": {"auto_create": True, "empty_timeout": 60, "departure_timeout": 30},
        "logging": {"level": "warn"},
    }
    if webhook:
        config["webhook"] = {"api_key": access.key, "urls": [webhook]}
    return json.dumps(config)


class LivekitServer:
    """A running server of our own. It dies with this process.

    Args:
        access: the address and keys that it gets.
        webhook: see `server_config`.

    Raises:
        UserError: there is no program, it ends at once, or it does not answer.
    """

    def __init__(self, access: LivekitAccess, webhook: str = "") -> None:
        program = require_server()
        self.access = access
        self._said = b""
        # The configuration holds the secret, so it is passed in the environment, which only this user can read.
        environment = os.environ | {"LIVEKIT_CONFIG": server_config(access, webhook)}
        self._process = subprocess.Popen(
            [sys.executable, "-ISc", _LAUNCH, str(os.getpid()), str(program)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,  # Ctrl-C reaches the parent alone
        )
        self._listener = threading.Thread(target=self._listen, name="livekit-server's log", daemon=True)
        self._listener.start()
        try:
            self._await_answer()
        except BaseException:
            self.stop()
            raise

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def stop(self) -> None:
        """End it."""
        if self.running:
            self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_SECONDS)
        if self.running:  # it waits for participants to leave
            self._process.kill()
            self._process.wait()
        self._listener.join(_STOP_SECONDS)

    def _await_answer(self) -> None:
        give_up = time.monotonic() + _START_SECONDS
        while time.monotonic() < give_up:
            if not self.running:
                raise UserError(f"{PROGRAM} ended at once: {self._last_line()}")
            if answers(self.access.url):
                return
            time.sleep(0.05)
        raise UserError(f"{PROGRAM} does not answer at {self.access.url}: {self._last_line()}")

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as log:
            while said := os.read(log.fileno(), _LOG_BYTES):
                self._said = (self._said + said)[-_LOG_BYTES:]

    def _last_line(self) -> str:
        if not self.running:
            self._listener.join(_STOP_SECONDS)
        lines = self._said.decode(errors="replace").strip().splitlines()
        return lines[-1][-300:] if lines else "it said nothing"


def answers(url: str, timeout: float = 1.0) -> bool:
    """Whether a LiveKit server answers at ws://... or wss://..."""
    from deploy.http import NO_ANSWER, request  # `characters doctor` runs without the packages that it misses

    try:
        return request("http" + url.removeprefix("ws"), timeout=timeout).status_code == 200
    except NO_ANSWER:
        return False
