"""`characters up`: the command; `starting` does it."""

from __future__ import annotations

import threading

import click


@click.command()
@click.option("--profile", default="laptop", show_default=True, help="What it runs on: a name from conf/deploy.")
@click.option("--pipelines", type=click.IntRange(1), default=1, show_default=True, help="Sessions at a time.")
@click.option("--port", type=click.IntRange(1, 65535), default=8000, show_default=True, help="Of the page.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Where the page is served.")
@click.option("--dashboard/--no-dashboard", default=True, show_default=True, help="Ray's dashboard.")
def up(profile: str, pipelines: int, port: int, host: str, dashboard: bool) -> None:
    """Start everything and print the address. Ctrl-C stops everything.

    Starts Ray, a LiveKit server (unless LIVEKIT_URL names one) and the application, all on loopback.
    """
    from deploy.cli.starting import up as start

    stop = threading.Event()
    args = {"profile": profile, "pipelines": pipelines, "http_port": port}
    start(args, host=host, dashboard=dashboard, stop=stop, say=click.echo)
