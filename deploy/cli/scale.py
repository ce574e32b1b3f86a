"""`characters scale` and `characters status`: a served application, seen through Ray's dashboard."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

_DASHBOARD = click.option(
    "--dashboard", default="", metavar="URL", help="Ray's dashboard.  [default: RAY_DASHBOARD_ADDRESS, or this machine]"
)


@click.command()
@click.argument("pipelines", type=click.IntRange(0))
@click.option("--application", default="default", show_default=True, help="Of Ray Serve.")
@_DASHBOARD
def scale(pipelines: int, application: str, dashboard: str) -> None:
    """Ask for PIPELINES pipelines: as many sessions can run at a time.

    The application must have been started with external_scaler_enabled. A pipeline that is told to go finishes its
    session first.
    """
    from deploy.cli.dashboard import Dashboard
    from deploy.planning.scaling import PIPELINE

    Dashboard(dashboard).scale(pipelines, application, PIPELINE)
    click.echo(f"asked for {pipelines} pipeline(s); `characters status` shows how far that is")


@click.command()
@click.option("--json", "as_json", is_flag=True, help="For another program.")
@_DASHBOARD
def status(as_json: bool, dashboard: str) -> None:
    """Show what runs: deployments, their replicas, sessions, the queue, and chunks that missed their deadline."""
    from characters.console import show_table
    from deploy.cli.dashboard import Dashboard

    cluster = Dashboard(dashboard)
    found = cluster.deployments()
    if as_json:
        told = {
            "deployments": [asdict(one) for one in found],
            "application": cluster.ingress(),
            "late_chunks": [
                {"model": model, "plan": plan, "late": late, "chunks": chunks}
                for (model, plan), (late, chunks) in sorted(cluster.late_chunks().items())
            ],
        }
        click.echo(json.dumps(told))
        return
    rows = []
    for one in found:
        running = one.replicas.get("RUNNING", 0)
        others = ", ".join(f"{n} {state.lower()}" for state, n in one.replicas.items() if state != "RUNNING")
        replicas = f"{running} of {one.target}" + (f" ({others})" if others else "")
        rows.append((one.application, one.name, one.status, replicas, one.message))
    if not found:
        click.echo("nothing is deployed")
        return
    show_table(("application", "deployment", "status", "replicas", "note"), rows)
    health = cluster.ingress()
    if health is None:
        click.echo("the application's own page cannot be reached from here")
    else:
        media = "answers" if health["livekit"] else "does not answer"
        click.echo(
            f"{health['running']} session(s) running, {health['queued']} queued, room for {health['capacity']}; "
            f"the media server {media}"
        )
        if health["random_weights"]:
            click.echo("the pictures are noise: the model has random weights")
        for told in (health["shortfall"], health["note"]):
            if told:
                click.echo(f"note: {told}")
    for (model, plan), (late, chunks) in sorted(cluster.late_chunks().items()):
        click.echo(f"{model}, plan {plan}: {late} of {chunks} chunks late")
