"""`characters livekit`: the media server of one's own."""

from __future__ import annotations

import click


@click.group()
def livekit() -> None:
    """The LiveKit server."""


@livekit.command()
def install() -> None:
    """Build livekit-server with Go, for this user."""
    from deploy.serving.livekit_server import install_server

    click.echo(install_server())
