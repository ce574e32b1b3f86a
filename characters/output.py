"""Files out: each appears complete or not at all."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from characters.errors import UserError

ROOM = 1 << 20  # bytes that must be free before work starts

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def check_output(path: str | Path) -> Path:
    """Check, before any work, that a file can be written at `path`; returns it as a Path.

    Raises:
        UserError: a folder, a device or a pipe; in a folder that is missing, not writable or on a full disk.
    """
    path = Path(path)
    try:
        if path.is_dir():
            raise UserError(f"cannot write {path}: it is a folder")
        if path.exists() and not path.is_file():  # it would be replaced, not written to
            raise UserError(f"cannot write {path}: it is not a regular file")
        if not path.parent.is_dir():
            raise UserError(f"cannot write {path}: the folder {path.parent} does not exist")
        os.unlink(temporary(path))  # trying is the only true test: permissions say nothing of a read-only disk
        free = shutil.disk_usage(path.parent).free
    except OSError as e:
        raise write_error(path, e) from e
    if free < ROOM:
        raise UserError(f"cannot write {path}: the disk is full")
    return path


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file that takes its place at `path` on leaving the `with` block without an exception.

    Otherwise it is removed, and whatever was at `path` stays.

    Raises:
        UserError: as `check_output`; the disk fills up while writing.
    """
    check_output(path)
    try:
        part = temporary(path)
        try:
            with open(part, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())  # a disk may report that it is full only now
            put(part, path)
        finally:
            Path(part).unlink(missing_ok=True)
    except OSError as e:
        raise write_error(path, e) from e


def temporary(path: Path) -> str:
    """Create an empty file beside `path`, for `put`. Raises OSError."""
    handle, name = tempfile.mkstemp(prefix=f".{path.stem[:50]}.", suffix=".part", dir=path.parent)
    os.close(handle)
    return name


def put(part: str, path: Path) -> None:
    """Put a file of `temporary` in its place, in one step. Raises OSError."""
    mask = os.umask(0)
    os.umask(mask)
    os.chmod(part, 0o666 & ~mask)
    os.replace(part, path)


def write_error(path: Path, error: Exception) -> UserError:
    """What to say of an error in writing `path`."""
    code = getattr(error, "errno", None)
    if code in _FULL:
        return UserError(f"cannot write {path}: the disk is full")
    if code in (errno.EACCES, errno.EPERM, errno.EROFS):
        return UserError(f"cannot write {path}: the folder {path.parent} is not writable")
    return UserError(f"cannot write {path}: {getattr(error, 'strerror', None) or error}")
