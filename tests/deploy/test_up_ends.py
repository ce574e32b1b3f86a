"""`characters up` whose Ray is ended under it: it says so, ends, and leaves no process."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from pathlib import Path

from deploy.bench.running import TINY
from deploy.serving.settings import free_ports
from tests.deploy.conftest import _printed_address, processes, up
from tests.deploy.test_serve_run import PROFILE


def test_it_ends_with_rays_node_service_and_nothing_hangs(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(TINY)
    (tmp_path / "pair.yaml").write_text(PROFILE.format(model=tmp_path / "tiny.yaml"))
    before = {pid for pid in processes(".*") if pid != os.getpid()}
    command = [*up(free_ports(18050, 1)), "--profile", str(tmp_path / "pair.yaml")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        guard = threading.Timer(120, running.kill)
        guard.start()
        _printed_address(running)
        raylet = next(pid for pid in processes("raylet") if pid not in before)
        os.kill(raylet, signal.SIGKILL)
        died = time.monotonic()
        assert running.stdout is not None
        told = running.stdout.read()
        code = running.wait()
        guard.cancel()
    assert time.monotonic() - died < 5
    assert code == 2 and "Ray's node service (raylet) was ended by signal 9: everything is stopped" in told
    assert not [pid for pid in processes(".*") if pid not in before and pid != os.getpid()]
