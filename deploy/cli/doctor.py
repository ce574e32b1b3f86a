"""`characters doctor`: the command; `examination` does it."""

from __future__ import annotations

import click


@click.command()
@click.option("--port", type=click.IntRange(1, 65535), default=8000, show_default=True, help="Of the page.")
def doctor(port: int) -> None:
    """Look at this machine: what is there, what is missing, and what to do about it.

    Exits with 1 if something that `characters up` needs is missing.
    """
    from deploy.cli.examination import examine

    worst = "ok"
    for line in examine(port):
        click.echo(f"{line.verdict:4}  {line.subject}: {line.found}" + (f"  ->  {line.remedy}" if line.remedy else ""))
        if line.verdict == "fail" or (line.verdict == "warn" and worst == "ok"):
            worst = line.verdict
    if worst == "fail":
        raise click.exceptions.Exit(1)
