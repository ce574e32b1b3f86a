"""The program, but for `up`'s character, who waits 3 s and not 20 for a user who has left."""

from __future__ import annotations

from typing import Any

from characters.cli.main import main
from deploy.cli import up

_serve = up._serve


def serve(args: dict[str, Any], *rest: Any) -> None:
    """See `deploy.cli.up`."""
    _serve(args | {"grace_s": 3}, *rest)


if __name__ == "__main__":
    up._serve = serve
    main()
