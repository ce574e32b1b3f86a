"""`characters bench`: how fast the parts of a model are on the GPUs of this machine."""

from __future__ import annotations

import click

from characters.cli.lazy import LazyGroup

COMMANDS = {
    "chunk": ("characters.cli.bench_chunk:chunk", "Time one chunk of a window model, its parts and an eager baseline."),
    "decode": ("characters.cli.bench_decode:decode", "Time one chunk in the decoder, and its convolutions alone."),
    "step": ("characters.cli.bench_step:step", "Time one step of the DiT on one GPU or several, and its floor."),
}


@click.group(cls=LazyGroup, places=COMMANDS)
def bench() -> None:
    """Measure on this machine's GPUs what decides whether a model keeps up."""
