"""Signs of life that do not pass through Ray: each process of a gang sends them to it, by datagram on loopback.

Ray tells of a process that has died, at once, but not of one that hangs. A call to it would wait; here it is missed.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

BEAT_SECONDS = 0.2
_MOST_AT_A_TIME = 1.25 * BEAT_SECONDS
_LOOPBACK = "127.0.0.1"
_LONGEST = 256  # bytes of a datagram


@dataclass(frozen=True, slots=True)
class Address:
    """Where to send heartbeats.

    Attributes:
        port: on loopback.
        token: that the listener asks for: others on this machine can send there, too.
        name: of the sender.
    """

    port: int
    token: str = field(repr=False)
    name: str


class Heart:
    """Beats in a thread of its own until its process ends.

    Args:
        address: of the listener. If it is on another host, nobody hears the beats and nothing follows from that.
        moved: counts the chunks that the process has handled since its channels were opened.
    """

    def __init__(self, address: Address, moved: Callable[[], int]) -> None:
        self._address, self._moved = address, moved
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()

    def _beat(self) -> None:
        to = self._address
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
            while True:
                with contextlib.suppress(OSError):  # the listener may be gone
                    message = f"{to.token} {to.name} {os.getpid()} {self._moved()}"
                    out.sendto(message.encode(), (_LOOPBACK, to.port))
                time.sleep(BEAT_SECONDS)


@dataclass(slots=True)
class _Heard:
    pid: int
    moved: int
    silent: float


class Heartbeats:
    """Hears the processes of one gang. All methods belong to one thread at a time.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._token = clock, secrets.token_hex(8)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((_LOOPBACK, 0))
        self._socket.setblocking(False)
        self._heard: dict[str, _Heard] = {}
        self._looked = clock()

    def address(self, name: str) -> Address:
        """For the process of this name."""
        return Address(self._socket.getsockname()[1], self._token, name)

    def look(self) -> None:
        """Take in what has come since the last look."""
        now = self._clock()
        # Little more than a beat at a time: while this process did not run, the others may not have run either. So on a
        # machine that has too much to do, silence is measured by the turns that this process gets.
        passed, self._looked = min(now - self._looked, _MOST_AT_A_TIME), now
        for heard in self._heard.values():
            heard.silent += passed
        with contextlib.suppress(BlockingIOError):
            while True:
                self._take(self._socket.recv(_LONGEST))

    def _take(self, message: bytes) -> None:
        with contextlib.suppress(ValueError):
            token, name, pid, moved = message.decode().split()
            if secrets.compare_digest(token, self._token):
                self._heard[name] = _Heard(int(pid), int(moved), 0.0)

    def restart(self) -> None:
        """Count from now: nobody has looked for a while."""
        self.look()
        for heard in self._heard.values():
            heard.silent = 0.0

    def silent(self, name: str) -> float:
        """Seconds since a process was heard last, as far as the last look knows; 0 if it never was."""
        heard = self._heard.get(name)
        return heard.silent if heard is not None else 0.0

    def pid(self, name: str) -> int | None:
        """Of a process; None if it was never heard."""
        heard = self._heard.get(name)
        return heard.pid if heard is not None else None

    def moved(self, name: str) -> int:
        """Chunks that a process had handled when it was heard last; 0 if it never was."""
        heard = self._heard.get(name)
        return heard.moved if heard is not None else 0

    def forget(self, name: str) -> None:
        """A process has ended."""
        self._heard.pop(name, None)

    def close(self) -> None:
        """Hear nothing more."""
        self._socket.close()
