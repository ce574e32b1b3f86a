"""`characters bench chunk`: milliseconds of one chunk of a window model."""

from __future__ import annotations

import click

from characters.cli.options import Finite
from characters.errors import UserError


@click.command()
@click.option("--model", default="leaptalk", show_default=True, help="A model of conf/model that has a window.")
@click.option("--passes", type=click.IntRange(1, 50), help="Of the DiT, with fresh noise.  [default: the model's own]")
@click.option("--autoencoder", type=click.Choice(["wan", "tae"]), default="wan", show_default=True)
@click.option("--precision", type=click.Choice(["fp8", "bf16"]), default="fp8", show_default=True, help="Of the DiT.")
@click.option("--seconds", default=4.0, show_default=True, type=Finite(1, 300), help="Of each measurement.")
@click.option("--baseline/--no-baseline", default=True, show_default=True, help="Measure the eager window too.")
@click.option("--sessions", type=click.IntRange(1), multiple=True, help="Sessions that keep time together; repeatable.")
@click.option("--check", is_flag=True, help="Compare pictures instead: FP8, bfloat16 and float32 over 64 chunks.")
def chunk(
    model: str,
    passes: int | None,
    autoencoder: str,
    precision: str,
    seconds: float,
    baseline: bool,
    sessions: tuple[int, ...],
    check: bool,
) -> None:
    """Time a chunk of a window model with random weights: all of it in one captured graph, and its parts.

    Each result is printed as soon as it is there.
    """
    import torch

    from characters.bench import chunk as bench
    from characters.model.config import load_model_config

    config = load_model_config(model)
    if config.window is None:
        raise UserError(f"model {model!r} makes no windows; try --model leaptalk")
    if torch.cuda.device_count() == 0:
        raise UserError("bench chunk measures GPUs and PyTorch sees none")
    config = bench.with_autoencoder(config, autoencoder)
    if passes is not None:
        config = bench.with_passes(config, passes)
    job = bench.Job(config, precision, seconds, baseline, sessions)
    click.echo(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}; {model}, {config.height}x{config.width},"
        f" {len(config.sampler.steps)} passes, {autoencoder}, {precision}"
    )
    if check:
        bench.check(job, click.echo, torch.device("cuda"))
    elif not bench.run(job, click.echo):
        raise SystemExit(1)
