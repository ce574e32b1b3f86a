"""The one exception that a user is meant to read."""

from __future__ import annotations


class UserError(Exception):
    """An error that the user can correct: a missing file, a bad key, a full disk.

    The message is one line that says what was wrong and, unless that is obvious, what to do. The command line prints
    it after `error: ` and exits with `exit_code`; a server returns it to the caller. Nobody sees a traceback, so raise
    it only where the message alone is enough to act on.
    """

    exit_code = 2

    def __init__(self, message: str) -> None:
        # The text of a cause may have several lines.
        super().__init__(" ".join(message.split()))


def did_you_mean(name: str, known: list[str]) -> str:
    """The end of an error message about an unknown `name`: the nearest known names, or all of them if none is near."""
    from difflib import get_close_matches

    near = get_close_matches(name, known, n=3, cutoff=0.6)
    if near:
        return f"did you mean {' or '.join(repr(n) for n in near)}?"
    return f"known: {', '.join(sorted(known))}" if known else "there are none"
