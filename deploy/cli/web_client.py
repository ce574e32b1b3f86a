"""The LiveKit client that the page loads: fetched once, checked, never part of this repository."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from characters.errors import UserError

_WEB = Path(__file__).resolve().parents[1] / "web"
_FILES = (_WEB / "livekit-client.umd.min.js", _WEB / "livekit-client.worker.js")
REMEDY = f"install npm (Node.js) and run: sh {_WEB / 'fetch.sh'}"


def is_there() -> bool:
    """Whether the page finds it."""
    return all(file.is_file() for file in _FILES)


def fetch() -> None:
    """Fetch the client if it isn't there.

    Raises:
        UserError: npm is missing, or the client could not be fetched or is not the one that was reviewed.
    """
    if is_there():
        return
    if shutil.which("npm") is None:
        raise UserError(f"the page's LiveKit client is missing and there is no npm to fetch it with; {REMEDY}")
    done = subprocess.run(["sh", str(_WEB / "fetch.sh")], capture_output=True, text=True)
    if done.returncode != 0 or not is_there():
        reason = (done.stderr.strip().splitlines() or ["npm gave no reason"])[-1]
        raise UserError(f"the page's LiveKit client could not be fetched: {reason}; {REMEDY}")
