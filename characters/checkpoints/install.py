"""Bring a model's published files to this machine, from a hub or a folder. A model appears whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from characters.checkpoints import hub
from characters.checkpoints.convert import PICKLES, convert, headers, sha256
from characters.checkpoints.store import Kept, models_folder, read_record, write_record
from characters.checkpoints.structure import FileReport, inspect
from characters.errors import UserError
from characters.model.config import CheckpointFile, ModelConfig
from characters.output import write_error

_SPARE = 64 << 20  # bytes of a disk that are left alone


@dataclass(frozen=True)
class Plan:
    """What it takes to bring a model.

    Attributes:
        remotes: what the hub says of each file.
        there: files of the model that are on this machine already, whole, by name.
        download: bytes that are still to come.
        needed: bytes of disk that it takes at the most; what a conversion reads is thrown away after it.
        free: bytes of disk that are free.
    """

    remotes: list[tuple[CheckpointFile, hub.Remote]]
    there: dict[str, Path]
    download: int
    needed: int
    free: int


def plan_get(config: ModelConfig) -> Plan:
    """Ask the hub what bringing a model takes.

    Raises:
        UserError: an error of `hub.ask`, or the folder of models cannot be written to.
    """
    remotes = [(file, hub.ask(file)) for file in config.files]
    work = models_folder() / f".{config.weights}.part"
    there = {file.name: path for file, remote in remotes if (path := _elsewhere(file, remote.sha256))}
    download = needed = 0
    for file, remote in remotes:
        if file.name in there or (work / file.name).exists():
            continue
        part = _part(work, file, remote)
        left = remote.size - (part.stat().st_size if part.exists() else 0)
        download += max(0, left)
        needed += max(0, left)
        if _converted(file):
            needed += remote.size
    # A file that is converted goes before the next one comes: two copies of one at a time.
    pickles = [remote.size for file, remote in remotes if _converted(file) and file.name not in there]
    needed -= sum(pickles) - max(pickles, default=0)
    return Plan(remotes, there, download, needed, _free(models_folder()))


def get(config: ModelConfig, plan: Plan) -> Path:
    """Bring a model from the hub; returns its folder.

    What has been downloaded stays when this is interrupted or fails, and the next call goes on from there.

    Raises:
        UserError: no room on the disk, an error of the hub, or a file that is not the model's.
    """
    if plan.needed + _SPARE > plan.free:
        raise UserError(
            f"no room for {config.weights} at {models_folder()}: it takes {size_text(plan.needed)}, and "
            f"{size_text(max(0, plan.free - _SPARE))} are free; CHARACTERS_MODELS names another folder"
        )
    with _working(config.weights) as work:
        kept = []
        for file, remote in plan.remotes:
            target, source = work / file.name, f"{file.repository}@{remote.commit[:12]}: {file.file}"
            if file.name in plan.there:
                _link(plan.there[file.name], target)
                digest = remote.sha256
            elif target.exists():  # from a call that was interrupted after it
                digest = remote.sha256
            else:
                part = _part(work, file, remote)
                digest = hub.download(file, remote, part)
                _take(part, target, file)
            kept.append(_kept(file, source, digest, target, published=True))
        _finish(config, work, kept)
    return models_folder() / config.weights


def bring(config: ModelConfig, folder: Path) -> tuple[Path, list[str]]:
    """Bring a model from a folder, such as one that was downloaded on another machine.

    Returns:
        Its folder, and what is worth saying: files that are not the published ones, to the byte.

    Raises:
        UserError: the folder lacks a file, the files are not the model's, or the disk is full.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder" if folder.exists() else f"{folder} does not exist")
    sources = {file.name: _find(folder, file) for file in config.files}
    free, needed = _free(models_folder()), 0
    for file in config.files:
        source = sources[file.name]
        if _converted(file, source) or source.stat().st_dev != _existing(models_folder()).stat().st_dev:
            needed += source.stat().st_size
    if needed + _SPARE > free:
        raise UserError(
            f"no room for {config.weights} at {models_folder()}: it takes {size_text(needed)}, and "
            f"{size_text(max(0, free - _SPARE))} are free; CHARACTERS_MODELS names another folder"
        )
    notes = []
    with _working(config.weights) as work:
        try:
            kept = []
            for file in config.files:
                source, target = sources[file.name], work / file.name
                digest = _digest(source)
                published = not file.sha256 or digest == file.sha256
                if not published and source.name != file.name:
                    notes.append(f"{source} is not the published file: its SHA-256 is {digest[:12]}…")
                target.unlink(missing_ok=True)
                if _converted(file, source):
                    convert(source, target, _prefix(file, source))
                else:
                    headers(source)  # whole, before it is taken
                    _link(source, target)
                kept.append(_kept(file, str(source), digest, target, published))
            _finish(config, work, kept)
        except BaseException:
            for file in config.files:
                (work / file.name).unlink(missing_ok=True)
            raise
    return models_folder() / config.weights, notes


def size_text(size: float) -> str:
    """A number of bytes, for people."""
    for unit, step in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= step:
            return f"{size / step:.{1 if size < 10 * step else 0}f} {unit}"
    return f"{size:.0f} bytes"


def _find(folder: Path, file: CheckpointFile) -> Path:
    """A published file below a folder: under its name and folders, or the name that it has here, or its SHA-256."""
    wanted = Path(file.file)
    candidates = [path for name in {wanted.name, file.name} for path in sorted(folder.rglob(name)) if path.is_file()]

    def nearness(path: Path) -> tuple[bool, int]:
        repository = file.repository.rpartition("/")[2]
        same = 0
        for ours, theirs in zip(reversed(path.parts), reversed(wanted.parts), strict=False):
            if ours != theirs:
                break
            same += 1
        return path.name == file.name, 2 * same + (repository in path.parts)

    if candidates:
        best = max(candidates, key=nearness)
        others = [path for path in candidates if path != best and nearness(path) == nearness(best)]
        if not others:
            return best
        if file.sha256:
            candidates = [path for path in (best, *others) if _digest(path) == file.sha256] or candidates
            if len(candidates) == 1:
                return candidates[0]
        raise UserError(f"{folder} has several files that could be {file.repository}: {file.file}, such as {best}")
    if file.sha256 and file.size:  # under another name
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.stat().st_size == file.size and _digest(path) == file.sha256:
                return path
    raise UserError(f"{folder} lacks {file.file} of {file.repository}")


def _digest(path: Path) -> str:
    try:
        return sha256(path)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error


def _converted(file: CheckpointFile, source: Path | None = None) -> bool:
    """Whether a file is written anew, not taken as it is."""
    return Path(source or file.file).suffix in PICKLES or bool(_prefix(file, source))


def _prefix(file: CheckpointFile, source: Path | None) -> str:
    """What is put before its tensors' names; nothing where that was done."""
    return "" if source is not None and source.name == file.name else file.prefix


def _take(part: Path, target: Path, file: CheckpointFile) -> None:
    """Make a downloaded file the model's."""
    if not _converted(file):
        headers(part)
        os.replace(part, target)
        return
    whole = part.with_name(part.name + Path(file.file).suffix)  # the ending tells a pickle
    os.replace(part, whole)
    try:
        convert(whole, target, file.prefix)
    finally:
        whole.unlink()


def _link(source: Path, target: Path) -> None:
    """The same file under another name; a copy on another disk."""
    target.unlink(missing_ok=True)
    try:
        try:
            os.link(source.resolve(), target)
        except OSError:
            shutil.copyfile(source, target)
    except OSError as error:
        target.unlink(missing_ok=True)
        raise write_error(target, error) from error


def _elsewhere(file: CheckpointFile, digest: str) -> Path | None:
    """The same published file, as another model of this machine has it."""
    if not digest:
        return None
    for folder in sorted(models_folder().glob("[!.]*")):
        kept = read_record(folder).get(file.name)
        path = folder / file.name
        if kept and kept.source_sha256 == digest and path.is_file() and path.stat().st_size == kept.size:
            return path
    return None


def _kept(file: CheckpointFile, source: str, digest: str, target: Path, published: bool) -> Kept:
    own = digest if not _converted(file) else _digest(target)
    return Kept(file.name, source, digest, published, target.stat().st_size, own)


def _finish(config: ModelConfig, work: Path, kept: list[Kept]) -> None:
    """Check the files and let the model appear."""
    _refuse(inspect(config, work))
    write_record(work, kept)
    final = models_folder() / config.weights
    old = work.with_name(f".{config.weights}.old")
    try:
        shutil.rmtree(old, ignore_errors=True)
        if final.exists():
            os.replace(final, old)
        os.replace(work, final)
    except OSError as error:
        if old.exists() and not final.exists():
            os.replace(old, final)
        raise write_error(final, error) from error
    shutil.rmtree(old, ignore_errors=True)


def _refuse(reports: list[FileReport]) -> None:
    for report in reports:
        if report.fault:
            raise UserError(report.fault)


def _part(work: Path, file: CheckpointFile, remote: hub.Remote) -> Path:
    """Where a download grows. Its name tells which bytes it is of."""
    return work / f"{file.name}.{(remote.sha256 or remote.commit or 'unknown')[:16]}.part"


def _work(name: str) -> Path:
    """Where a model grows; made if it is not there."""
    folder = models_folder() / f".{name}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to {models_folder()}: {error.strerror or error}") from error
    return folder


def _free(folder: Path) -> int:
    try:
        return shutil.disk_usage(_existing(folder)).free
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror or error}") from error


def _existing(folder: Path) -> Path:
    """The folder, or the nearest above it that exists."""
    return next(path for path in (folder, *folder.parents) if path.exists())


@contextmanager
def _working(name: str) -> Iterator[Path]:
    """The folder where a model grows, for one process at a time; gone afterwards if nothing is in it."""
    work = _work(name)
    lock = FileLock(models_folder() / f".{name}.lock")
    try:
        with lock.acquire(timeout=0):
            try:
                yield work
            finally:
                if work.exists() and not any(work.iterdir()):
                    work.rmdir()
    except Timeout as error:
        raise UserError(f"{name} is being brought by another process") from error
