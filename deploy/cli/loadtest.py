"""`characters loadtest`: how many users does a served application carry, and how well?"""

from __future__ import annotations

from pathlib import Path

import click

from characters.cli.options import Finite
from characters.output import check_output


@click.command()
@click.option("--url", default="http://127.0.0.1:8000", show_default=True, help="Of the application.")
@click.option("--users", type=click.IntRange(1), default=1, show_default=True, help="Who come half a second apart.")
@click.option("--minutes", type=Finite(0.1), default=1.0, show_default=True, help="From the first one on.")
@click.option("--character", default="ruby", show_default=True, help="Whom they talk to.")
@click.option("--out", default="loadtest.json", show_default=True, type=click.Path(path_type=Path), help="The report.")
def loadtest(url: str, users: int, minutes: float, character: str, out: Path) -> None:
    """Send users without browsers, who ask questions aloud, and measure what they get.

    Frames a second, stalls, the time to an answer; who is let in, queued and refused, and why. The report is JSON, with
    a picture beside it. An application with an API key wants it in CHARACTERS_API_KEY.
    """
    from deploy.load.report import lines, picture_beside, write
    from deploy.load.users import loadtest as send

    check_output(out)  # before minutes are spent
    check_output(picture_beside(out))
    found, picture = write(send(url, users, minutes, character, say=click.echo), out)
    for line in lines(found):
        click.echo(line)
    click.echo(f"{out}, {picture}")
