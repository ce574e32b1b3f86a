"""An application for a bench: `characters up` in a process and a temporary folder of its own."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from characters.errors import UserError
from deploy.bench.census import Census, take_census
from deploy.serving.settings import free_ports

_START_SECONDS, _STOP_SECONDS = 300.0, 60.0

# A model so small that it costs next to nothing; its pictures are noise.
TINY = """
height: 64
width: 48
latent_channels: 8
latent_stride: 16
sink: 1
ring: 2
dit:
  dim: 32
  ffn_dim: 64
  num_heads: 2
  num_layers: 2
  patch: 1
  concat_previous: true
  concat_reference: true
  prediction: x0
  residual_reference: true
  audio_dim: 16
autoencoder:
  encoder_channels: [8, 8, 8, 8]
  decoder_channels: [8, 8, 8]
sampler:
  context_noise: 0.2
"""
_STUB = "model: {model}\nrandom_weights: true\ndevice: cpu\ncpus: 0.1\nflight: 2\nstandby: all\n"


@dataclass(frozen=True, slots=True)
class Running:
    """It runs.

    Attributes:
        address: of the page.
        key, secret: of its media server.
        folder: its temporary folder.
        mark: of its processes' environment.
    """

    address: str
    key: str
    secret: str
    folder: Path
    mark: str

    def census(self) -> Census:
        """See `take_census`."""
        return take_census(self.mark, self.folder)


@contextlib.contextmanager
def running(profile: str, pipelines: int, say: Callable[[str], object]) -> Iterator[Running]:
    """Start it, and take it down in the end.

    Args:
        profile: as for `characters up`, or "stub": everything is real but the model, which costs next to nothing.
        pipelines: sessions at a time.
        say: takes what it says.

    Raises:
        UserError: it does not come up.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what follows is taken down then, too
    port, key, secret = free_ports(18400, 1), "bench", secrets.token_hex(20)
    mark = f"CHARACTERS_BENCH={secrets.token_hex(6)}"
    # Ray's sockets lie deep below this folder, and their whole names may have 107 bytes.
    own = Path(tempfile.gettempdir()) / f"b{secrets.token_hex(3)}"
    own.mkdir(mode=0o700)
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        if profile == "stub":
            (folder / "tiny.yaml").write_text(TINY)
            (folder / "stub.yaml").write_text(_STUB.format(model=folder / "tiny.yaml"))
            profile = str(folder / "stub.yaml")
        environment = os.environ | {
            "TMPDIR": str(own),
            "LIVEKIT_API_KEY": key,
            "LIVEKIT_API_SECRET": secret,
            **dict([mark.split("=")]),
        }
        command = [sys.executable, "-m", "characters", "up", "--no-dashboard", "--port", str(port)]
        command += ["--profile", profile, "--pipelines", str(pipelines)]
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            try:
                address = _address(process, say)
                thread = threading.Thread(target=_hand_on, args=(process, say), daemon=True)
                thread.start()
                yield Running(address, key, secret, own, mark)
            finally:
                process.send_signal(signal.SIGINT)
                try:
                    process.wait(_STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()
                shutil.rmtree(own, ignore_errors=True)


def _address(process: subprocess.Popen[str], say: Callable[[str], object]) -> str:
    guard = threading.Timer(_START_SECONDS, process.kill)
    guard.daemon = True
    guard.start()
    assert process.stdout is not None
    told = ""
    for line in process.stdout:
        told += line
        say(line.rstrip())
        if found := re.search(r"open (http://\S+)", line):
            guard.cancel()
            return found[1].split("/#")[0]
    raise UserError(f"`characters up` has not come up: {told}")


def _hand_on(process: subprocess.Popen[str], say: Callable[[str], object]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if "(raylet)" not in line:  # Ray tells at length of every process that was killed
            say(line.rstrip())
