"""`characters bench`: how fast are the parts of a model on the GPUs at hand?"""

from __future__ import annotations

import click

from characters.cli.lazy import LazyGroup

COMMANDS = {
    "decode": ("characters.cli.bench_decode:decode", "One chunk in the decoder, against its convolutions alone."),
    "step": ("characters.cli.bench_step:step", "One step of the DiT, over one GPU or several, against its floor."),
}


@click.group(cls=LazyGroup, places=COMMANDS)
def bench() -> None:
    """Measure, on the GPUs at hand, what decides whether a model keeps up."""
