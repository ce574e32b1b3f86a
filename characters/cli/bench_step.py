"""`characters bench step`: milliseconds of one DiT step."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from characters.cli.options import Finite
from characters.errors import UserError

if TYPE_CHECKING:
    from characters.bench.step import Job, Result


@click.command()
@click.option("--model", default="reference-57b", show_default=True, help="A model of conf/model.")
@click.option("--plan", "plan_text", default="sequence=1", show_default=True, help="Such as pipeline=2,sequence=2.")
@click.option("--context", type=click.IntRange(2), help="Chunks attended to, sink included.  [default: the model's]")
@click.option(
    "--alone", is_flag=True, help="Time the work of one rank of the plan, on one GPU and without the other ranks."
)
@click.option("--precision", type=click.Choice(["fp8", "bf16"]), default="fp8", show_default=True)
@click.option("--scales", type=click.Choice(["static", "dynamic"]), default="static", show_default=True, help="Of FP8.")
@click.option("--weights", type=click.Path(path_type=Path), help="Safetensors, a file or a folder.  [default: random]")
@click.option("--seconds", default=8.0, show_default=True, type=Finite(1, 300), help="Of each measurement.")
@click.option("--baseline", is_flag=True, help="Measure the launch-style step too.")
@click.option(
    "--floor/--no-floor", default=True, show_default=True, help="Measure the bare products and attention too."
)
@click.option("--check", is_flag=True, help="Compare results instead: FP8, bfloat16 and float32, scales, plan, ring.")
@click.option(
    "--soak",
    type=click.IntRange(100),
    metavar="N",
    help="Time N steps in a row instead, for their slowest and their memory.",
)
def step(
    model: str,
    plan_text: str,
    context: int | None,
    alone: bool,
    precision: str,
    scales: str,
    weights: Path | None,
    seconds: float,
    baseline: bool,
    floor: bool,
    check: bool,
    soak: int | None,
) -> None:
    """Time a DiT step: chunk after chunk in captured graphs, for seconds, at the clock that the card holds."""
    import torch

    from characters.bench.step import Job
    from characters.model.config import load_model_config, with_context
    from characters.model.plan import GPU, check_gpus, parse_plan

    config, plan = load_model_config(model), parse_plan(plan_text)
    if context is not None:
        config = with_context(config, context, model)
    count = torch.cuda.device_count()
    if count == 0:
        raise UserError("bench step measures GPUs and PyTorch sees none")
    gpu = GPU(
        count=plan.gpus if alone else count,
        memory=min(torch.cuda.mem_get_info(i)[0] for i in range(count)),
        capability=torch.cuda.get_device_capability(),
        name=torch.cuda.get_device_name(),
    )
    check_gpus(plan, config, model, precision, gpu)
    job = Job(config, plan, alone, precision, scales, weights, seconds, baseline, floor)
    click.echo(f"{gpu.name}, torch {torch.__version__}; {model}, {_describe(job)}")
    if check:
        from characters.bench.check import check_numbers

        check_numbers(job, click.echo)
    elif soak is not None:
        from characters.bench.soak import soak_steps

        soak_steps(job, soak, click.echo)
    else:
        from characters.bench.launch import run
        from characters.bench.step import measure

        for result in run(measure, job):
            _print(job, result)


def _describe(job: Job) -> str:
    config = job.config
    alone = ", one rank alone" if job.alone and job.plan.gpus > 1 else ""
    precision = f"{job.format}, {job.mode} scales" if job.format == "fp8" else job.format
    return f"plan {job.plan}{alone}, context {config.sink + config.ring}, {precision}"


def _print(job: Job, result: Result) -> None:
    from rich.table import Table

    from characters.console import PipedConsole

    shard, console = result.shard, PipedConsole(width=110)
    table = Table(title=f"stage {shard.stage}, rank {shard.rank}: layers {shard.layers}, {shard.rows} rows")
    for column in ("", "median ms", "p99 ms", "first ms", "TFLOP/s", "MHz", "W"):
        table.add_column(column, justify="left" if not column else "right")

    def row(name: str, timing, flops: float) -> None:
        table.add_row(
            name, f"{timing.ms:.1f}", f"{timing.percentile(99):.1f}", f"{timing.first_ms:.1f}",
            f"{timing.teraflops(flops):.0f}", f"{timing.mhz:.0f}", f"{timing.watts:.0f}",
        )  # fmt: skip

    for exchange, timing in result.step.items():
        row("step" if exchange == "local" else f"step, {exchange} exchange", timing, result.flops)
    if result.floor is not None:
        floor = result.floor
        row("floor: products", floor.products, floor.product_flops)
        row("floor: attention", floor.attention, floor.attention_flops)
        row("floor: both", floor.both, floor.product_flops + floor.attention_flops)
    if result.baseline is not None:
        row("launch-style", result.baseline, result.flops)
    console.print(table)
    best = next(iter(result.step.values()))
    if result.floor is not None:
        console.print(f"step / floor: {best.ms / result.floor.both.ms:.3f} (goal 1.04)")
    if result.baseline is not None:
        console.print(f"launch-style / step: {result.baseline.ms / best.ms:.2f} (goal 2), {result.distinct} own layers")
    if result.kinds:
        console.print("one step: " + ", ".join(f"{kind} {ms:.1f}" for kind, ms in result.kinds.items() if ms) + " ms")
    console.print(f"memory: {result.memory / 1e9:.1f} GB held by the step")
