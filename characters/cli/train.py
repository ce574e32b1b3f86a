"""`characters corpus` and `characters train`: how the shipped weights were made."""

from __future__ import annotations

from pathlib import Path

import click

from characters.cli.options import Finite
from characters.training.recipe import STAGES, load_recipe


@click.command()
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder for speech.npz.")
@click.option(
    "--minutes", default=300.0, show_default=True, type=Finite(min=0, min_open=True), help="Length of the speech."
)
@click.option("--seed", default=1, show_default=True)
def corpus(out: Path, minutes: float, seed: int) -> None:
    """Make the speech corpus that training needs, with hibari-tts and espeak-ng."""
    from characters.training.speech_corpus import build

    click.echo(build(out, minutes, seed))


@click.command()
@click.option("--recipe", default="small", show_default=True, help="Name in conf/train, or a YAML file.")
@click.option("--corpus", required=True, type=click.Path(path_type=Path), help="speech.npz of `characters corpus`.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder for weights, states and logs.")
@click.option("--stage", "stages", multiple=True, type=click.Choice(STAGES), help="Run only these stages.")
@click.option("--device", default="cuda", show_default=True, help="cuda or cpu.")
def train(recipe: str, corpus: Path, out: Path, stages: tuple[str, ...], device: str) -> None:
    """Train a model on rendered characters. Run the command again to continue a training that was stopped.

    Several GPUs: `torchrun --nproc-per-node N -m characters train ...`.
    """
    from characters.training.run import train as run_recipe

    run_recipe(load_recipe(recipe), corpus, out, stages or STAGES, device)
