"""What `characters up` says and does when Ray ends under it, with processes that stand in for Ray's."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.cli import watch
from deploy.cli.watch import RayEnded, keep_watch


@pytest.fixture
def ray() -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    made = {name: subprocess.Popen(["sleep", "60"]) for name in ("gcs_server", "raylet", "dashboard")}
    yield made
    for process in made.values():
        process.kill()
        process.wait()


@pytest.mark.parametrize(("name", "title"), [("gcs_server", "control service"), ("raylet", "node service")])
def test_the_end_of_what_ray_needs_is_noticed_though_the_page_hangs(
    ray: dict[str, subprocess.Popen[bytes]], name: str, title: str
) -> None:
    threading.Timer(0.3, ray[name].kill).start()
    began = time.monotonic()

    def hangs() -> bool:
        time.sleep(30)
        return False

    with pytest.raises(RayEnded, match=rf"Ray's {title} \({name}\) was ended by signal 9"):
        keep_watch(ray, hangs, threading.Event(), lambda line: None)
    assert time.monotonic() - began < 3


def test_the_page_is_missed_and_its_return_is_told(
    ray: dict[str, subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_PAGE_SECONDS", 0.3)
    monkeypatch.setattr(watch, "_LOOK_SECONDS", 0.05)
    stop, said, answers = threading.Event(), list[str](), [True, False]
    ray["dashboard"].kill()  # Ray does without

    def tell(line: str) -> None:
        said.append(line)
        answers[0] = True
        if "again" in line and "after" in line:
            stop.set()

    threading.Timer(0.2, lambda: answers.__setitem__(0, False)).start()
    threading.Timer(10, stop.set).start()
    keep_watch(ray, lambda: answers[0], stop, tell)
    assert said[0].startswith("the page does not answer") and said[1].startswith("the page answers again")


def test_no_descendant_is_left() -> None:
    code = """
import subprocess, sys, time
from deploy.cli.watch import adopt_orphans, end_descendants
adopt_orphans()
orphan = "import subprocess; print(subprocess.Popen(['sleep', '61'], stdout=-3).pid, flush=True)"
out = subprocess.run([sys.executable, "-c", orphan], stdout=subprocess.PIPE, text=True).stdout
child = subprocess.Popen(["sh", "-c", "sleep 62 & sleep 63"])
time.sleep(0.5)
end_descendants()
print(out.strip(), child.pid, flush=True)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    for pid in done.stdout.split():
        assert not Path(f"/proc/{pid}").exists(), pid
