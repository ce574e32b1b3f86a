"""`characters bench decode`: milliseconds of one chunk in the decoder."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import click

from characters.errors import UserError

if TYPE_CHECKING:
    from characters.bench.decode import Job, Result

GOAL_MS = 55.0
GOAL_SPEED_UP = 2.9
GOAL_STATE = 2.0  # GiB
GOAL_PSNR = 45.0  # dB


@click.command()
@click.option("--model", default="reference-57b", show_default=True, help="A model of conf/model.")
@click.option("--split", default=1, show_default=True, type=click.IntRange(1), help="GPUs that share a picture's rows.")
@click.option("--exact-cache", is_flag=True, help="Remember frames in bfloat16 instead of bytes.")
@click.option("--seconds", default=8.0, show_default=True, type=click.FloatRange(1, 300), help="Of each measurement.")
@click.option("--baseline/--no-baseline", default=True, show_default=True, help="Measure diffusers' as well, if there.")
@click.option(
    "--check",
    is_flag=True,
    help="Compare pictures instead: bfloat16 with float32, or, with --split, with the whole one.",
)
def decode(model: str, split: int, exact_cache: bool, seconds: float, baseline: bool, check: bool) -> None:
    """Time the Wan VAE's decoder, chunk after chunk in a captured graph, with random weights."""
    import dataclasses

    import torch

    from characters.bench.decode import Job, check_quality, run, wan_config
    from characters.model.config import load_model_config

    config = load_model_config(model)
    wan = dataclasses.replace(wan_config(config, model), weights="")
    if exact_cache:
        wan = dataclasses.replace(wan, compact_cache=False)
    config = dataclasses.replace(config, autoencoder=dataclasses.replace(config.autoencoder, wan=wan))
    count = torch.cuda.device_count()
    if count < split:
        raise UserError(f"bench decode needs {split} GPU(s) and PyTorch sees {count}")
    # Chroma planes are halved, and a band's must be whole rows of the picture.
    if config.latent_size[0] % split or config.height // split % 4:
        raise UserError(f"{config.height} rows cannot be split over {split} GPUs")
    click.echo(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; {model}, {config.height}x{config.width}")
    if check and split == 1:
        for name, decibels in check_quality(config, torch.device("cuda")):
            click.echo(f"{name}: PSNR {decibels:.1f} dB against float32 (goal {GOAL_PSNR:.0f})")
        return
    job = Job(config, split, seconds, baseline, check)
    _print(job, run(job))


def _print(job: Job, result: Result) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(width=110)
    for difference in result.differences:
        console.print(f"split by rows over {job.split} GPUs, against the whole picture: {difference}")
    rows = (
        ("chunk, launched", result.launched),
        ("chunk, captured", result.chunk),
        ("with its copy to the host", result.copied),
        ("convolutions alone", result.convolutions),
    )
    if any(timing for _, timing in rows):
        table = Table(title="one chunk" if job.split == 1 else f"one chunk, rows over {job.split} GPUs")
        for column in ("", "median ms", "p99 ms", "first ms", "TFLOP/s", "MHz", "W"):
            table.add_column(column, justify="left" if not column else "right")
        for name, timing in rows:
            if timing is not None:
                table.add_row(
                    name, f"{timing.ms:.1f}", f"{timing.percentile(99):.1f}", f"{timing.first_ms:.1f}",
                    f"{timing.teraflops(result.flops or math.nan):.0f}", f"{timing.mhz:.0f}", f"{timing.watts:.0f}",
                )  # fmt: skip
        console.print(table)
    if (chunk := result.chunk) is not None:
        console.print(f"chunk: {chunk.ms:.1f} ms" + (f" (goal {GOAL_MS:.0f})" if job.split == 1 else ""))
        if result.convolutions is not None:
            console.print(f"share of the convolutions' ceiling: {result.convolutions.ms / chunk.ms:.1%}")
        if result.copied is not None and result.copy is not None:
            hidden = result.copied.ms - chunk.ms
            console.print(f"copy to pinned memory: {result.copy:.2f} ms, of which {hidden:+.2f} ms show in the chunk")
    if result.parts:
        console.print("launched: " + ", ".join(f"{part} {ms:.2f}" for part, ms in result.parts.items()) + " ms")
    if result.baseline is not None:
        console.print(f"diffusers, eager: {result.baseline:.1f} ms")
        if result.chunk is not None:
            console.print(f"speed-up: {result.baseline / result.chunk.ms:.2f} (goal {GOAL_SPEED_UP})")
    if result.stream_bytes:
        state = result.stream_bytes / 2**30
        console.print(
            f"a session's frames: {state:.2f} GiB (goal {GOAL_STATE:.0f}); everything: {result.bytes / 2**30:.1f}"
        )
    for failure in result.failures:
        console.print(f"not measured: {failure}", markup=False)
    if result.failures:
        raise SystemExit(1)
