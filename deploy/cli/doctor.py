"""`characters doctor`: what is on this machine, what is missing, and what to do about it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click

from characters.errors import UserError
from deploy.cli import web_client
from deploy.serving import livekit_server
from deploy.serving.settings import LIVEKIT_PORT, free_ports, is_free

Verdict = Literal["ok", "warn", "fail"]

_RAY_PORTS = (6379, 8265)
_MEMORY_GB = 4
_SHARED_GB = 1


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that was looked at. `remedy` says what to do, or is empty."""

    verdict: Verdict
    subject: str
    found: str
    remedy: str = ""


@click.command()
@click.option("--port", type=click.IntRange(1, 65535), default=8000, show_default=True, help="Of the page.")
def doctor(port: int) -> None:
    """Look at this machine: what is there, what is missing, and what to do about it.

    Exits with 1 if something that `characters up` needs is missing.
    """
    failed = False
    for line in examine(port):
        click.echo(f"{line.verdict:4}  {line.subject}: {line.found}" + (f"  ->  {line.remedy}" if line.remedy else ""))
        failed |= line.verdict == "fail"
    if failed:
        raise click.exceptions.Exit(1)


def examine(port: int) -> Iterator[Line]:
    """Look at everything, one line after another. Nothing is changed or started.

    Args:
        port: the page's.
    """
    yield _python()
    yield _processor()
    yield _memory()
    yield from _packages()
    yield from _gpu()
    yield from _ports(port)
    yield from _livekit()
    yield _page()
    yield _weights()
    yield from _assets()
    yield Line(
        "ok",
        "browser",
        "Chrome, Edge, Firefox or Safari of the last two years",
        "the microphone works on http://127.0.0.1 and http://localhost; from another machine only over https",
    )


def _python() -> Line:
    return Line("ok", "Python", f"{platform.python_version()}, {sys.executable}")  # older ones do not install us


def _processor() -> Line:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    flags: set[str] = set()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        line = next((text for text in info.read_text().splitlines() if text.startswith(("flags", "Features"))), "")
        flags = set(line.split())
    fast = [name for name in ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "bf16") if name in flags]
    found = f"{cores} cores, {platform.machine()}, {' '.join(fast) or 'no wide vectors'}"
    if cores < 2:
        return Line("warn", "processor", found, "one core is too slow for a live picture; use two or more, or a GPU")
    if cores < 4:
        return Line("warn", "processor", found, "enough for one session when nothing else runs; four cores are better")
    return Line("ok", "processor", found)


def _memory() -> Line:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    try:
        shared = shutil.disk_usage("/dev/shm").free / 2**30
    except OSError:
        shared = float("inf")
    found = f"{total:.1f} GB, {shared:.1f} GB of it free as shared memory"
    if total < _MEMORY_GB:
        return Line("fail", "memory", found, f"a session needs {_MEMORY_GB} GB")
    if shared < _SHARED_GB:
        return Line("warn", "memory", found, "give a container more shared memory: docker run --shm-size=2g")
    return Line("ok", "memory", found)


def _packages() -> Iterator[Line]:
    needed = {
        "torch": "pip install -e .",
        "ray": "pip install -e '.[serve]'",
        "fastapi": "pip install -e '.[serve]'",
        "httpx2": "pip install -e '.[serve]'",
        "livekit": "pip install -e '.[serve]'",
        "livekit-api": "pip install -e '.[serve]'",
        "onnxruntime": "pip install -e '.[voice]'",
    }
    for name, remedy in needed.items():
        try:
            yield Line("ok", name, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            yield Line("fail", name, "not installed", remedy)


def _gpu() -> Iterator[Line]:
    driver = shutil.which("nvidia-smi")
    if driver is None:
        yield Line("ok", "GPU", "none seen; profile laptop runs on the processor")
        return
    query = [driver, "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    told = subprocess.run(query, capture_output=True, text=True, timeout=20)
    if told.returncode:
        reason = (told.stderr or told.stdout).strip()
        yield Line("fail", "GPU driver", reason, "nvidia-smi must work: reinstall the driver")
        return
    for line in told.stdout.strip().splitlines():
        yield Line("ok", "GPU", line.strip())
    try:
        import torch
    except ImportError:
        return
    if not torch.cuda.is_available():
        remedy = "install a PyTorch built for CUDA: https://pytorch.org/get-started"
        yield Line("fail", "CUDA in PyTorch", f"torch {torch.__version__} sees no GPU", remedy)
        return
    yield Line("ok", "CUDA in PyTorch", f"{torch.version.cuda}, {torch.cuda.device_count()} GPU(s)")
    if torch.distributed.is_nccl_available():
        yield Line("ok", "NCCL", ".".join(map(str, torch.cuda.nccl.version())))
    else:
        yield Line("warn", "NCCL", "not in this PyTorch", "needed for sessions over several GPUs")
    try:
        yield Line("ok", "FlashAttention 3", importlib.metadata.version("fa3-fwd"))
    except importlib.metadata.PackageNotFoundError:
        yield Line("warn", "FlashAttention 3", "not installed", "on Hopper GPUs: pip install -e '.[gpu]'")


def _ports(port: int) -> Iterator[Line]:
    from deploy.cli.up import running_at

    address = f"http://127.0.0.1:{port}"
    if is_free(port):
        yield Line("ok", "page's port", f"{port} is free")
    elif running_at(address):
        yield Line("ok", "page's port", f"the application is running already: {address}")
    else:
        yield Line("fail", "page's port", f"{port} is taken by another program", "characters up --port NUMBER")
    for number in _RAY_PORTS:
        if not is_free(number):
            yield Line("warn", "Ray's ports", f"{number} is taken, perhaps by another Ray", "another one will be used")


def _livekit() -> Iterator[Line]:
    url = os.environ.get("LIVEKIT_URL", "")
    if url:
        if not (os.environ.get("LIVEKIT_API_KEY") and os.environ.get("LIVEKIT_API_SECRET")):
            remedy = "set LIVEKIT_API_KEY and LIVEKIT_API_SECRET as well"
            yield Line("fail", "LiveKit", f"LIVEKIT_URL is {url}, but there is no key", remedy)
        elif livekit_server.answers(url, timeout=3.0):
            yield Line("ok", "LiveKit", f"{url} answers")
        else:
            yield Line("fail", "LiveKit", f"{url} does not answer", "start that server, or unset LIVEKIT_URL")
        return
    found = livekit_server.find_server()
    if found is None and shutil.which("go"):
        yield Line("warn", "LiveKit", "no livekit-server; Go is here", "characters livekit install (or up does it)")
    elif found is None:
        yield Line("fail", "LiveKit", "no livekit-server", livekit_server.THREE_WAYS)
    else:
        yield Line("ok", "LiveKit", str(found))
    try:
        first = free_ports(LIVEKIT_PORT)
        yield Line("ok", "LiveKit's ports", f"{first} and {first + 1} are free")
    except UserError as error:
        yield Line("fail", "LiveKit's ports", str(error), "free two ports in a row")


def _page() -> Line:
    if web_client.is_there():
        return Line("ok", "page", "its LiveKit client is here", "")
    if shutil.which("npm"):
        return Line("warn", "page", "its LiveKit client is not fetched yet", "characters up does it")
    return Line("fail", "page", "its LiveKit client is missing", web_client.REMEDY)


def _weights() -> Line:
    from characters.model.checkpoint import WEIGHTS_FOLDER

    files = [WEIGHTS_FOLDER / "small" / name for name in ("dit.safetensors", "autoencoder.safetensors")]
    if all(f.is_file() for f in files):
        return Line("ok", "small model", f"{sum(f.stat().st_size for f in files) / 1e6:.0f} MB of weights")
    return Line("fail", "small model", "its weights are missing", "reinstall the package characters")


def _assets() -> Iterator[Line]:
    """What is read from inside other packages."""
    from characters.assets import PACKAGES, SMART_TURN

    for package in PACKAGES:
        fault = package.fault()
        if fault is None:
            yield Line("ok", package.name, f"{importlib.metadata.version(package.name)}, {', '.join(package.files)}")
        elif package is SMART_TURN and package.path is None:
            yield Line("warn", package.name, fault.what, f"{fault.command}; without it words and pauses end a turn")
        else:
            yield Line("fail", package.name, fault.what, fault.command)
