"""The `characters` program: its commands, and what a user sees when something goes wrong."""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import entry_points

import click

from characters.cli.lazy import LazyGroup
from characters.errors import UserError

# name -> (where its click command is, its line in the list of commands)
COMMANDS = {
    "render": ("characters.cli.render:render", "Make a video of a character saying a recording or a text."),
    "list": ("characters.cli.gallery:list_command", "List the characters at hand."),
    "new": ("characters.cli.gallery:new", "Make a character from a portrait."),
    "models": ("characters.cli.models:models", "Bring, check and list models."),
    "evaluate": ("characters.cli.evaluate:evaluate", "Measure how good a model is."),
    "corpus": ("characters.cli.train:corpus", "Make the speech corpus for training."),
    "train": ("characters.cli.train:train", "Train a model on rendered characters."),
    "bench": ("characters.cli.bench:bench", "Measure a DiT step on the GPUs at hand."),
}


def _commands() -> dict[str, tuple[str, str]]:
    """The library's commands and those that other packages register. The library imports none of these packages."""
    found = dict(COMMANDS)
    for entry in entry_points(group="characters.commands"):
        found |= entry.load()
    return found


@click.group(
    cls=LazyGroup,
    places=_commands(),
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option("--debug", is_flag=True, help="Show where an error came from.")
@click.version_option(package_name="characters")
@click.pass_context
def cli(ctx: click.Context, debug: bool) -> None:
    """Talking video characters: a portrait and a voice in, a video out."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main(argv: Sequence[str] | None = None) -> None:
    """Run the program and exit.

    Exit codes: 0 done; 2 for an error that the user can correct, after one line `error: ...`; 129 when the terminal
    closed; 130 after Ctrl-C; 143 when terminated; 1 for a fault of the program itself. Notes (`note: ...`) go to stderr
    too.
    """
    args = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in args
    args = [a for a in args if a != "--debug"]  # accepted before and after the command
    _show_notes()
    _take_any_terminal()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # raises, so that temporary files are removed
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup
        signal.signal(signal.SIGHUP, lambda *_: sys.exit(_lose_stdout(129)))
    try:
        # Not cli.main(): it handles Ctrl-C and broken pipes in its own way.
        with cli.make_context("characters", args) as context:
            cli.invoke(context)
        sys.stdout.flush()
        code = 0
    except click.exceptions.Exit as e:
        code = e.exit_code
    except (UserError, click.ClickException) as e:
        code = _report(e, debug)
    except (KeyboardInterrupt, click.Abort):
        code = _say("interrupted", 130)
    except BrokenPipeError:  # `characters list | head`
        code = _lose_stdout()
    except OSError as e:
        if debug:
            traceback.print_exc()
        if e.filename is None and e.errno in (errno.EIO, errno.EBADF, errno.ENXIO) and not _can_print():
            code = _lose_stdout()  # the terminal is closed: what was to be done is done, and nobody reads about it
        elif e.filename is None and e.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT) and not _can_print():
            _lose_stdout()
            code = _say(f"error: cannot write what was to be printed: {e.strerror}", 2)
        elif e.filename is None or e.strerror is None:
            code = _fault(e, debug)
        else:  # a name that is too long, a folder without permission: the user can correct it
            code = _say(f"error: {os.fsdecode(e.filename)}: {e.strerror}", 2)
    except ModuleNotFoundError as e:
        if debug:
            traceback.print_exc()
        code = _say(f"error: this needs the Python package {e.name!r}: pip install it, or see the README's extras", 2)
    except Exception as e:
        if debug:
            traceback.print_exc()
        code = _fault(e, debug)
    sys.exit(code)


def _fault(error: Exception, debug: bool) -> int:
    hint = "" if debug else "; run again with --debug to see where"
    return _say(f"error: this is a fault of the program: {type(error).__name__}: {error}{hint}", 1)


def _report(error: UserError | click.ClickException, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    if isinstance(error, click.ClickException):
        message = error.format_message()
        if isinstance(error, click.UsageError) and error.ctx is not None:
            message += f" (see '{error.ctx.command_path} --help')"
    else:
        message = str(error)
    return _say(f"error: {message}", error.exit_code)


def _say(line: str, code: int) -> int:
    _print_note(" ".join(line.split()))
    return code


def _print_note(line: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # nobody reads it
        print(line, file=sys.stderr, flush=True)


def _take_any_terminal() -> None:
    """Finished work does not fail by a closed stream, nor by an encoding that lacks a character, which shows as `?`."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(fd)
        except OSError:  # closed by `>&-`: a video that is opened later must not become the place of messages
            nothing = os.open(os.devnull, os.O_RDWR)
            if nothing != fd:
                os.dup2(nothing, fd)
                os.close(nothing)
            setattr(sys, name, os.fdopen(fd, "w" if fd else "r", encoding="utf8"))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace" if stream is sys.stderr else "replace")


def _can_print() -> bool:
    """Whether stdout takes what is still to be written to it."""
    try:
        sys.stdout.flush()
        os.write(sys.stdout.fileno(), b"")
    except (OSError, ValueError):
        return False
    return True


def _lose_stdout(code: int = 0) -> int:
    """Nothing more is printed, and Python does not try at its end; returns the exit code."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


class _Notes(logging.Handler):
    """Prints warnings of the library as lines `note: ...` to the stderr of that moment."""

    def emit(self, record: logging.LogRecord) -> None:
        _print_note(f"note: {' '.join(record.getMessage().split())}")


def _show_notes() -> None:
    log = logging.getLogger("characters")
    if not log.handlers:
        log.addHandler(_Notes(logging.WARNING))
        log.propagate = False


if __name__ == "__main__":
    main()
