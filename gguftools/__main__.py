"""Entry point of the command line: it takes Ctrl-C and odd streams in hand before anything else is imported."""

import gc
import os
import sys
from typing import TYPE_CHECKING

from .cli.interruption import take_interruptions

if TYPE_CHECKING:
    import typer

PROGRAM = "gguftools"


def build_app(called: str | None = None) -> "typer.Typer":
    """The Typer app. called: the one command that will run, if that is known; without it, all can."""
    from . import __version__
    from .cli import commands
    from .cli.app import build_app as build

    return build(__version__, commands.load(called), called)


def main() -> None:
    """Run the command line, and exit."""
    take_interruptions()
    from .cli import terminal

    terminal.prepare_streams()
    called = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    if called:  # what commands need, and --help does not
        from .cli.startup import collect_garbage_seldom, keep_numba_from_scipy, load_constants_alone
        from .io.bus_errors import take_bus_errors

        take_bus_errors()
        collect_garbage_seldom()
        load_constants_alone()
        keep_numba_from_scipy()
    try:
        build_app(None if "_GGUFTOOLS_COMPLETE" in os.environ else called)(prog_name=PROGRAM)
    except SystemExit as ended:
        gc.freeze()  # nothing is worth looking for cycles any more, which takes as long as a small command
        sys.exit(terminal.flushed(ended.code))
    except OSError as error:  # not of a command, which explains its own, but of what is printed before there is one
        sys.exit(terminal.unwritable(error))


if __name__ == "__main__":
    main()
