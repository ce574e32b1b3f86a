"""`characters calibrate`: how fast is this machine?"""

from __future__ import annotations

from pathlib import Path

import click

from characters.chunk import Clock
from characters.cli.options import Finite
from characters.output import check_output


@click.command()
@click.option("--out", default="rates.yaml", show_default=True, type=click.Path(path_type=Path), help="File to write.")
@click.option("--seconds", default=2.0, show_default=True, type=Finite(0.05, 60), help="For each figure.")
def calibrate(out: Path, seconds: float) -> None:
    """Measure this machine's GPU, or its CPU, for `characters plan --rates FILE`.

    Matrix products in bfloat16 and fp8, attention, elementwise work, copies, and the small model. Close other programs.
    """
    from deploy.planning.calibrate import calibrate as measure
    from deploy.planning.calibrate import write

    check_output(out)  # before minutes are spent
    rates = measure(seconds, say=click.echo)
    write(rates, out)
    small = rates.models["small"]
    needed, there = small.audio + small.dit + small.decoder, 1e3 * Clock().seconds
    click.echo(f"small model: {needed:.1f} ms a chunk, {there:.1f} are there")
    click.echo(f"{out}; try: characters plan --model small --gpus {rates.name} --rates {out}")
