"""The folder in which the processes of one session meet: held by those that live, swept when none of them does."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

PREFIX = "characters-"
_YOUNG_SECONDS = 5.0  # it may have been made, and not be held yet


def hold(folder: Path) -> int:
    """Make the folder if it is not there, and hold it until the descriptor is closed or the process ends."""
    folder.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def sweep() -> None:
    """Remove the folders of sessions whose processes were all killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # it is held, or somebody else's, or gone
            if not folder.is_dir() or time.time() - folder.stat().st_mtime < _YOUNG_SECONDS:
                continue
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)
