"""The command line: finds the commands, runs one, turns errors into one line and an exit code (0, 1, 2 for usage)."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from typing import Annotated

import typer

from quants.errors import GgufToolsError

from . import __version__, commands


def _version(wanted: bool) -> None:
    if wanted:
        print(f"gguftools {__version__}")
        raise typer.Exit


def build_app() -> typer.Typer:
    """The Typer app: every module of `gguftools.commands` holds one function of its own name."""
    app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")

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
        app.command(info.name.replace("_", "-"))(getattr(module, info.name))
    return app


def main() -> None:
    """Entry point of the console script."""
    debug = "--debug" in sys.argv
    if debug:
        sys.argv.remove("--debug")
    try:
        build_app()()
    except GgufToolsError as error:
        if debug:
            raise
        from .ui import print_error

        print_error(error)
        sys.exit(1)
    except KeyboardInterrupt:
        if debug:
            raise
        print("interrupted: nothing was left under a final name", file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:
        sys.stderr.close()  # whoever read our output has gone
        sys.exit(1)
    except (OSError, MemoryError) as error:
        if debug:
            raise
        from .ui import print_error

        print_error(GgufToolsError(f"{type(error).__name__}: {error}"))
        sys.exit(1)


if __name__ == "__main__":
    main()
