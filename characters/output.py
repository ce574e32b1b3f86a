"""Output files: each appears complete or not at all."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from characters.errors import UserError

ROOM = 1 << 20  # bytes that must be free before work starts

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def check_output(path: str | Path) -> Path:
    """Check, before any work, that a file can be written at `path`; returns it as a Path, of a link where it leads.

    Raises:
        UserError: `path` is a folder, a device or a pipe, or its folder is missing, not writable or on a full disk.
    """
    path = Path(path)
    if os.path.islink(path):  # the file that it leads to is written; the link stays
        path = Path(os.path.realpath(path))
    try:
        if os.path.islink(path):
            raise UserError(f"cannot write {path}: it is a link that leads to itself")
        if path.is_dir():
            raise UserError(f"cannot write {path}: it is a folder")
        if path.exists() and not path.is_file():  # the file would replace it, not be written to it
            raise UserError(f"cannot write {path}: it is not a regular file")
        if not path.parent.is_dir():
            raise UserError(f"cannot write {path}: the folder {path.parent} does not exist")
        os.unlink(temporary(path))  # permissions do not tell of a read-only disk, so try
        free = shutil.disk_usage(path.parent).free
    except OSError as e:
        raise write_error(path, e) from e
    if free < ROOM:
        raise UserError(f"cannot write {path}: the disk is full")
    return path


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file that appears at `path` when the `with` block ends without an exception.

    After an exception the new file is removed, and an older file at `path` stays.

    Raises:
        UserError: an error of `check_output`, or the disk fills up while the file is written.
    """
    path = check_output(path)
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
    """Move a file made by `temporary` to `path`, in one step; an older file's mode stays. Raises OSError."""
    try:
        mode = stat.S_IMODE(os.stat(path).st_mode)
    except FileNotFoundError:
        mask = os.umask(0)
        os.umask(mask)
        mode = 0o666 & ~mask
    os.chmod(part, mode)
    os.replace(part, path)


def write_error(path: Path, error: Exception) -> UserError:
    """The UserError for an error met while writing `path`."""
    code = getattr(error, "errno", None)
    if code in _FULL:
        return UserError(f"cannot write {path}: the disk is full")
    if code in (errno.EACCES, errno.EPERM, errno.EROFS):
        return UserError(f"cannot write {path}: the folder {path.parent} is not writable")
    return UserError(f"cannot write {path}: {getattr(error, 'strerror', None) or error}")
