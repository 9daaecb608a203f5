"""The command line: finds the commands, runs one, turns errors into one line and an exit code (0, 1, 2 for usage)."""

from __future__ import annotations

import functools
import importlib
import os
import pkgutil
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from . import __version__, commands
from .interruption import take_interruptions
from .startup import keep_numba_from_scipy, load_constants_alone
from .usage import Commands


def _version(wanted: bool) -> None:
    if wanted:
        print(f"gguftools {__version__}")
        raise typer.Exit


def build_app() -> typer.Typer:
    """The Typer app: every module of `gguftools.commands` holds one function of its own name."""
    app = typer.Typer(cls=Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

    @app.callback()
    def options(
        version: Annotated[
            bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
        ] = False,
        debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
    ) -> None:
        """Turn Hugging Face checkpoints into GGUF files, quantize them, edit them, and measure what quantizing cost."""

    for info in sorted(pkgutil.iter_modules(commands.__path__), key=lambda info: info.name):
        module = importlib.import_module(f"{commands.__name__}.{info.name}")
        app.command(info.name.replace("_", "-"))(guarded(getattr(module, info.name)))
    return app


def guarded(command: Callable[..., None]) -> Callable[..., None]:
    """The command, with what a user can cause as one clear line and exit code 1 (--debug: a traceback)."""

    @functools.wraps(command)
    def run(*arguments: Any, **options: Any) -> None:
        try:
            command(*arguments, **options)
        except KeyboardInterrupt:
            if _debug:
                raise
            print("interrupted", file=sys.stderr, flush=True)
            os._exit(1)  # files are closed by now; a compiler that was cut off would complain at a usual exit
        except BrokenPipeError:
            sys.stderr.close()  # whoever read our output has gone
            raise typer.Exit(1) from None
        except Exception as error:
            if _debug or not _show(error):
                raise
            raise typer.Exit(1) from None

    return run


def _show(error: Exception) -> bool:
    """Print an error that a user can cause; False for one that is ours."""
    from quants.errors import GgufToolsError

    from .ui import print_error

    if isinstance(error, (OSError, MemoryError)):
        error = GgufToolsError(f"{type(error).__name__}: {error}")
    if not isinstance(error, GgufToolsError):
        return False
    print_error(error)
    return True


_debug = False


def main() -> None:
    """Entry point of the console script."""
    global _debug
    _debug = "--debug" in sys.argv
    sys.argv = [word for word in sys.argv if word != "--debug"]
    take_interruptions()
    load_constants_alone()
    keep_numba_from_scipy()
    build_app()()


if __name__ == "__main__":
    main()
