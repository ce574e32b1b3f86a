"""`characters plan`: how a model can be spread over GPUs, and which ways keep up."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from characters.errors import UserError


@click.command()
@click.option("--model", default="small", show_default=True, help="A model of conf/model.")
@click.option(
    "--gpus", required=True, metavar="SPEC", help="8xH200; 3x8xH200/4 = 3 nodes, NVLink islands of 4; parts join by +."
)
@click.option("--context", type=click.IntRange(1), help="Chunks that a chunk attends to.  [default: the model's own]")
@click.option("--rates", type=click.Path(path_type=Path), help="A file of `characters calibrate`; --gpus may name it.")
@click.option("--json", "as_json", is_flag=True, help="For another program.")
@click.option("--across-nodes", is_flag=True, help="A session may lie on several nodes; serving keeps it on one.")
def plan(model: str, gpus: str, context: int | None, rates: Path | None, as_json: bool, across_nodes: bool) -> None:
    """Show every way to spread a session of a model over GPUs, the best first, and why the others are not taken.

    A plan is kept if 99 % of its chunks are done in the time that a chunk lasts. The best has the shortest
    turn; then the fewest GPUs.
    """
    from characters.config import load_yaml
    from characters.console import show_table
    from characters.model.config import load_model_config, with_context
    from deploy.planning.cluster import parse_cluster
    from deploy.planning.cost import deadline, standby_memory
    from deploy.planning.fleet import sessions_held
    from deploy.planning.plan import USABLE, kept
    from deploy.planning.plan import plan as look
    from deploy.planning.rates import How, ModelTimes, Rate, Rates

    config = load_model_config(model)
    if context is not None:
        config = with_context(config, context, model)
    own = load_yaml(rates, Rates) if rates else None
    cluster = parse_cluster(gpus, {own.name.lower(): own} if own else None)
    verdicts = look(model, config, cluster, across_nodes)
    heads = ("GPU", "plan", "GPUs", "DiT ms", "decoder ms", "p99 ms", "turn ms", "GB", "sessions", "verdict")
    rows = []
    for v in verdicts:
        split = f"pipeline {v.plan.pipeline} x sequence {v.plan.sequence} + {v.plan.decoder} decoder"
        figures = [""] * 5
        if v.cost is not None:
            dit = max(s.ms for s in v.cost.stages if s.name != "decoder")
            decoder = next((f"{s.ms:.1f}" for s in v.cost.stages if s.name == "decoder"), "with DiT")
            turn = f"{v.cost.turn:.0f}" if v.option else ""
            figures = [f"{dit:.1f}", decoder, f"{v.cost.p99:.1f}", turn, f"{v.cost.memory:.0f}"]
        held = str(sessions_held(cluster, v.option, across_nodes)) if v.option else ""
        verdict = f"kept: {v.reason}" if v.option else f"rejected: {v.reason}"
        rows.append((v.kind, split, str(v.gpus), *figures, held, verdict))
    if as_json:
        told = [
            {
                "gpu": v.kind,
                "pipeline": v.plan.pipeline,
                "sequence": v.plan.sequence,
                "decoder": v.plan.decoder,
                "gpus": v.gpus,
                "stages_ms": {s.name: s.ms for s in v.cost.stages} if v.cost else {},
                "p99_ms": v.cost.p99 if v.cost else None,
                "turn_ms": v.cost.turn if v.cost and v.option else None,
                "memory_gb": v.cost.memory if v.cost else None,
                "sessions": sessions_held(cluster, v.option, across_nodes) if v.option else 0,
                "kept": v.option is not None,
                "reason": v.reason,
            }
            for v in verdicts
        ]
        click.echo(json.dumps(told))
    else:
        show_table(heads, rows, right=range(2, 9))
        err = not sys.stdout.isatty()
        attends = "" if config.window else f"; context {config.sink + config.ring} chunks"
        click.echo(f"{cluster}; p99 must be within {deadline(config):.1f} ms{attends}", err=err)
        for v in [v for v in verdicts if v.option][:1]:
            need, room = standby_memory(config, v.plan, cluster.rates[v.kind]), cluster.rates[v.kind].memory.value
            fits = f"{need:.1f} of its {room:.0f} GB"
            if need >= USABLE * room:
                fits = f"which has no room for the {need:.1f} GB"
            click.echo(f"`standby: all` takes one {v.kind} more a session of the best plan, {fits}", err=err)
        for kind, r in cluster.rates.items():
            named = [v for v in (*vars(r).values(), *r.models.values()) if isinstance(v, (Rate, ModelTimes))]
            guessed = sum(v.how is How.estimated for v in named)
            click.echo(f"{kind}: {len(named) - guessed} rates measured, {guessed} estimated", err=err)
    if not kept(verdicts):
        raise UserError(f"no plan of model {model!r} keeps up on {gpus}")
