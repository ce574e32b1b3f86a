"""A second network namespace, and the only link between it and this one. Needs Linux, root and iproute2."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from types import TracebackType

_NUMBER = os.getpid()


class TwoNetworks:
    """This namespace and another, whose link can be cut; what still runs in the other at the end is killed.

    Attributes:
        near, far: address of this side and of the other.
    """

    def __init__(self) -> None:
        self._name, self._ends = f"characters{_NUMBER}", (f"chn{_NUMBER}", f"chf{_NUMBER}")
        network = f"10.{200 + _NUMBER % 50}.{_NUMBER // 50 % 250}"
        self.near, self.far = f"{network}.1", f"{network}.2"

    def __enter__(self) -> TwoNetworks:
        near, far = self._ends
        _ip("netns", "add", self._name)
        _ip("link", "add", near, "type", "veth", "peer", "name", far, "netns", self._name)
        _ip("address", "add", f"{self.near}/32", "dev", near)
        _ip("link", "set", near, "up")
        _ip("route", "add", self.far, "dev", near)
        # On the loopback device, so that the other side still reaches itself when the link is down.
        _ip("-n", self._name, "address", "add", f"{self.far}/32", "dev", "lo")
        _ip("-n", self._name, "link", "set", "lo", "up")
        self.heal()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for process in _ip("netns", "pids", self._name).split():
            with contextlib.suppress(ProcessLookupError):  # it ends with another
                os.kill(int(process), signal.SIGKILL)
        _ip("link", "delete", self._ends[0])
        _ip("netns", "delete", self._name)

    def there(self, *command: str) -> subprocess.Popen[bytes]:
        """Start a program in the other namespace."""
        return subprocess.Popen(["ip", "netns", "exec", self._name, *command], stdout=subprocess.DEVNULL)

    def cut(self) -> None:
        """No packet passes any more, and nobody is told."""
        _ip("-n", self._name, "link", "set", self._ends[1], "down")

    def heal(self) -> None:
        """Packets pass."""
        _ip("-n", self._name, "link", "set", self._ends[1], "up")
        _ip("-n", self._name, "route", "add", self.near, "dev", self._ends[1], "src", self.far)


def _ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr.strip()}"
    return done.stdout
