"""What an application has on its machine: processes by kind, memory, descriptors, threads, files. Linux only."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# Ray keeps processes in stock and ends them as it likes.
_STOCK = ("ray::IDLE", "python", "python3")


@dataclass(frozen=True, slots=True)
class Census:
    """One look.

    Attributes:
        processes: ids of the processes, by kind.
        memory: MB that only they hold and that would have to be written somewhere to be freed, by kind.
        descriptors, threads: of all of them.
        folders: of sessions, in the temporary folder.
        files: in the temporary folder in all.
        shared: entries of /dev/shm.
    """

    processes: dict[str, list[int]]
    memory: dict[str, float]
    descriptors: int
    threads: int
    folders: int
    files: int
    shared: int

    def counts(self) -> dict[str, int]:
        """Processes by kind, but for Ray's stock; folders and shared memory."""
        found = {kind: len(pids) for kind, pids in self.processes.items() if kind not in _STOCK}
        return found | {"folders": self.folders, "/dev/shm": self.shared}


def take_census(mark: str, folder: Path) -> Census:
    """Look at every process that has `mark`, "NAME=VALUE", in its environment, orphans too.

    Args:
        mark: given to the application when it was started.
        folder: its temporary folder.
    """
    processes: dict[str, list[int]] = {}
    memory: Counter[str] = Counter()
    descriptors = threads = 0
    for found in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() not in (found / "environ").read_bytes().split(b"\0"):
                continue
            command = (found / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            private = re.search(r"^Private_Dirty:\s+(\d+)", (found / "smaps_rollup").read_text(), re.M)
            descriptors += len(list((found / "fd").iterdir()))
            threads += len(list((found / "task").iterdir()))
        except OSError:  # it has just ended
            continue
        kind = kind_of(command)
        processes.setdefault(kind, []).append(int(found.name))
        memory[kind] += int(private[1]) / 1024 if private else 0.0
    inside = list(folder.rglob("*")) if folder.is_dir() else []
    sessions = [path for path in inside if path.is_dir() and path.name.startswith("characters-")]
    shared = Path("/dev/shm")
    return Census(
        processes, dict(memory), descriptors, threads, len(sessions), len(inside), len(list(shared.iterdir()))
    )


def kind_of(command: str) -> str:
    """A short name of what runs: "ray::Stage", "gcs_server", "characters up"."""
    words = command.split(" ")
    if words[0].startswith("ray::"):
        return words[0].split(".")[0]  # without the method that it is in
    if " up " in f"{command} " and "-m" in words:
        return "characters up"
    name = words[0].rsplit("/", 1)[-1]
    script = next((word for word in words[1:] if word.endswith(".py")), "")
    return Path(script).name or name


def slope(times: Sequence[float], values: Sequence[float]) -> float:
    """Growth of the values an hour, by least squares; times are seconds.

    Raises:
        ValueError: fewer than two different times.
    """
    middle, mean = sum(times) / len(times), sum(values) / len(values)
    spread = sum((t - middle) ** 2 for t in times)
    if not spread:
        raise ValueError("a slope needs two times")
    return 3600 * sum((t - middle) * (v - mean) for t, v in zip(times, values, strict=True)) / spread


def lost(before: Census, after: Census) -> dict[str, int]:
    """What there is more or fewer of after than before, by kind."""
    was, now = before.counts(), after.counts()
    differences = {kind: now.get(kind, 0) - was.get(kind, 0) for kind in was.keys() | now.keys()}
    return {kind: count for kind, count in sorted(differences.items()) if count}


def size_of(folder: Path) -> float:
    """MB of all files in a folder."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.lstat().st_size if path.is_file() else 0
    return total / 1e6
