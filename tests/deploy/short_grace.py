"""The program, but for `up`'s character, who waits 3 s and not 20 for a user who has left."""

from __future__ import annotations

from typing import Any

from characters.cli.main import main
from deploy.cli import starting

_up = starting.up


def up(args: dict[str, Any], **options: Any) -> None:
    """See `starting.up`."""
    _up(args | {"grace_s": 3}, **options)


if __name__ == "__main__":
    starting.up = up
    main()
