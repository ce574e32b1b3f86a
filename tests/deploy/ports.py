"""Which TCP ports this process's descendants listen on, from /proc."""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path

from tests.deploy.conftest import processes

_LISTEN = "0A"


def listening() -> dict[int, str]:
    """Port -> address, "::" and "0.0.0.0" being all interfaces."""
    inodes = _sockets()
    found = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTEN and fields[9] in inodes:
                address, port = fields[1].split(":")
                found[int(port, 16)] = _address(address)
    return found


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches it."""
    parsed = ipaddress.ip_address(address)
    return (getattr(parsed, "ipv4_mapped", None) or parsed).is_loopback


def _sockets() -> set[str]:
    """Inodes of the sockets of our processes."""
    inodes = set()
    for pid in processes(".*"):
        try:
            links = [os.readlink(descriptor) for descriptor in Path(f"/proc/{pid}/fd").iterdir()]
        except OSError:  # it has just ended
            continue
        inodes |= {link[8:-1] for link in links if link.startswith("socket:[")}
    return inodes


def _address(words: str) -> str:
    """From the kernel's spelling: hexadecimal, each 32-bit word in the machine's order."""
    data = b"".join(bytes.fromhex(words[i : i + 8])[::-1] for i in range(0, len(words), 8))
    return str(ipaddress.ip_address(data))
