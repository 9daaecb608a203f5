"""The commands as one program: finds them, gives each the options that all have, turns errors into one line."""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args

import typer
from typer.models import OptionInfo

from .. import __version__, commands
from . import completion, interruption, terminal
from .contradictions import refuse_contradictions
from .help import Command
from .usage import Commands

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Leave out progress and notes, but no warning or error.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Say what is read, compiled and written, and when.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the tracebacks of errors.")]
DebugUnsaid = Annotated[bool, typer.Option("--debug", hidden=True)]

# What stands for the value of an option in help: its own metavar, or what its name always means, or what its type says.
BY_NAME = {
    "exclude_weights": "PART", "fail_on": "SEVERITY", "from_json": "FILE", "imatrix": "FILE",
    "include_weights": "PART", "key": "KEY", "memory": "SIZE", "outtype": "OUTTYPE",
    "output_tensor_type": "FORMAT", "override_kv": "KEY=TYPE:VALUE", "pre": "NAME", "prune_layers": "LAYERS",
    "recipes": "RECIPE",    "remove": "KEY", "rename": "OLD=NEW", "reserve": "SIZE", "special_token": "ROLE=TOKEN",
    "split_max_size": "SIZE", "tensor_type": "REGEX=FORMAT", "tensors": "REGEX",
    "token_embedding_type": "FORMAT", "type": "KEY=TYPE", "vram": "SIZE",
}  # fmt: skip
BY_TYPE = {int: "N", float: "X", Path: "PATH", str: "TEXT"}
PACKAGES = ("quants", "archs", "runtime", "gguftools")

_verbose = _debug = False  # as given in front of the command


def build_app() -> typer.Typer:
    """The Typer app: every module of `gguftools.commands` holds one function of its own name, and EXAMPLES of it."""
    app = typer.Typer(
        cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )  # fmt: skip

    @app.callback()
    def options(
        version: Annotated[
            bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
        ] = False,
        quiet: Quiet = False, verbose: Verbose = False, debug: Debug = False,
    ) -> None:  # fmt: skip
        """Turn Hugging Face checkpoints into GGUF files, quantize them, edit them, and measure what quantizing cost."""
        global _verbose, _debug
        terminal.quiet, _verbose, _debug = quiet, verbose, debug

    for info in sorted(pkgutil.iter_modules(commands.__path__), key=lambda info: info.name):
        module = importlib.import_module(f"{commands.__name__}.{info.name}")
        command = app.command(info.name.replace("_", "-"), cls=Command, epilog="\n".join(module.EXAMPLES))
        command(guarded(getattr(module, info.name)))
    return app


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gguftools {__version__}")
        raise typer.Exit


def guarded(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the options that all have, and what a user can cause as one clear line and exit code 1."""

    def run(*, quiet: Quiet = False, verbose: Verbose = False, debug: DebugUnsaid = False, **options: Any) -> None:
        terminal.quiet |= quiet
        try:
            with interruption.working(), _told() if verbose or _verbose else nullcontext():
                refuse_contradictions(command, {**options, "quiet": quiet, "verbose": verbose})
                command(**options)
        except (KeyboardInterrupt, Exception) as error:
            if debug or _debug or isinstance(error, typer.Exit) or not _show(error):
                raise
            raise typer.Exit(1) from None

    own, common = (inspect.signature(each, eval_str=True).parameters.values() for each in (command, run))
    parameters = [_with_word(each) for each in own] + [each for each in common if each.kind is each.KEYWORD_ONLY]
    functools.update_wrapper(run, command)
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def _with_word(parameter: inspect.Parameter) -> inspect.Parameter:
    """A parameter whose option has a word for its value, and a list of values to complete where that is known."""
    kind, info = get_args(parameter.annotation)
    while found := [each for each in get_args(kind) if each is not NoneType]:
        kind = found[0]  # Path of Path | None, str of list[str] | None
    word = info.metavar or BY_NAME.get(parameter.name, BY_TYPE.get(kind))
    if isinstance(info, OptionInfo):
        info.metavar = word
    info.autocompletion = completion.VALUES.get(word)
    return parameter


@contextmanager
def _told() -> Iterator[None]:
    """Meanwhile what the packages log goes to stderr."""
    import logging
    import resource
    import time

    from ..metadata.visible import visible

    class Told(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            terminal.say(f"{time.perf_counter() - start:8.3f} s  {visible(record.getMessage())}")

    start, handler = time.perf_counter(), Told()
    for name in PACKAGES:
        logging.getLogger(name).setLevel(logging.INFO)
        logging.getLogger(name).addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger(__name__).info("done; %.0f MB of memory at most",
                                         resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000)  # fmt: skip
        for name in PACKAGES:
            logging.getLogger(name).removeHandler(handler)


def _show(error: BaseException) -> bool:
    """Print an error that a user can cause; False for one that is ours."""
    from quants.errors import GgufToolsError

    from .ui import print_error

    if isinstance(error, KeyboardInterrupt) or interruption.arrived:
        interruption.leave()
    if isinstance(error, BrokenPipeError):
        return True  # whoever read our output has gone
    if isinstance(error, (OSError, MemoryError)):
        error = GgufToolsError(f"{type(error).__name__}: {error}")
    if not isinstance(error, GgufToolsError):
        return False
    print_error(error)
    return True
