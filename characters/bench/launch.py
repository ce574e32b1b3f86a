"""Runs a measurement here, or in a process for each GPU of a plan."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import torch
from rich.console import Console
from rich.progress import Progress

from characters.bench.step import Group, Job, Progressed, forget

T = TypeVar("T")

# Runs on every GPU of a plan at once; a function that another process can import.
Work: TypeAlias = Callable[[Job, Group, Progressed], T]


def run(work: Work[T], job: Job) -> list[T]:
    """What the work returns on each GPU, in the order of the plan's shards; of one GPU if the job is for one alone."""
    if job.alone or job.plan.gpus == 1:
        return [_run(0, work, job, None)]
    with tempfile.TemporaryDirectory() as folder:
        spawn(_run_and_save, (work, job, folder), job.plan.gpus)
        files = [Path(folder) / str(rank) for rank in range(job.plan.gpus)]
        return [torch.load(file, weights_only=False, map_location="cpu") for file in files]


def spawn(function: Callable[..., None], arguments: tuple[Any, ...], ranks: int) -> None:
    """Call `function(rank, *arguments)` in as many processes as there are ranks, and wait for them.

    Warnings of PyTorch's C++ parts, such as that sends are not batched, stay out of the report; errors are shown.
    """
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # processes read it as they load PyTorch
    torch.multiprocessing.spawn(function, arguments, nprocs=ranks)


def _run(rank: int, work: Work[T], job: Job, path: str | None) -> T:
    device = torch.device(job.device, rank if job.device == "cuda" else None)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    group = Group(job, rank, device, path)
    with Progress(console=Console(stderr=True), transient=True, disable=rank > 0) as bar:
        task = bar.add_task("weights")
        result = work(job, group, lambda done, total: bar.update(task, completed=done, total=total))
    forget()
    group.close()
    return result


def _run_and_save(rank: int, work: Work[Any], job: Job, folder: str) -> None:
    torch.save(_run(rank, work, job, f"{folder}/meet"), Path(folder) / str(rank))
