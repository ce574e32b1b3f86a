"""`characters bench decode`: milliseconds of one chunk in the decoder."""

from __future__ import annotations

import click

from characters.cli.options import Finite
from characters.errors import UserError

GOAL_PSNR = 45.0  # dB


@click.command()
@click.option("--model", default="reference-57b", show_default=True, help="A model of conf/model.")
@click.option("--split", default=1, show_default=True, type=click.IntRange(1), help="GPUs that share a picture's rows.")
@click.option("--exact-cache", is_flag=True, help="Remember frames in float16 instead of bytes.")
@click.option("--seconds", default=8.0, show_default=True, type=Finite(1, 300), help="Of each measurement.")
@click.option(
    "--baseline/--no-baseline",
    default=True,
    show_default=True,
    help="Measure the decoder of diffusers too, if it is installed.",
)
@click.option(
    "--check",
    is_flag=True,
    help="Compare pictures instead: float16 with float32; with --split, the parts with the whole.",
)
def decode(model: str, split: int, exact_cache: bool, seconds: float, baseline: bool, check: bool) -> None:
    """Time the Wan VAE's decoder with random weights, chunk after chunk in a captured graph.

    Each result is printed as soon as it is there.
    """
    import dataclasses

    import torch

    from characters.bench.decode import Job, run, wan_config
    from characters.bench.decode_quality import check_quality
    from characters.model.config import load_model_config

    config = load_model_config(model)
    wan = dataclasses.replace(wan_config(config, model), weights="")
    if exact_cache:
        wan = dataclasses.replace(wan, compact_cache=False)
    config = dataclasses.replace(config, autoencoder=dataclasses.replace(config.autoencoder, wan=wan))
    count = torch.cuda.device_count()
    if count < split:
        raise UserError(f"bench decode needs {split} GPU(s) and PyTorch sees {count}")
    # Chroma planes have half the rows, and a band must hold whole rows of both.
    if config.latent_size[0] % split or config.height // split % 4:
        raise UserError(f"{config.height} rows cannot be split over {split} GPUs")
    click.echo(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; {model}, {config.height}x{config.width}")
    if check and split == 1:
        for name, decibels in check_quality(config, torch.device("cuda")):
            click.echo(f"{name}: PSNR {decibels:.1f} dB against float32 (goal {GOAL_PSNR:.0f})")
        return
    if not run(Job(config, split, seconds, baseline, check), click.echo):
        raise SystemExit(1)
