"""Assemble the commands to one program: add shared options, print errors as one line."""

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from . import interruption, terminal
from .exclusions import contradiction, in_options
from .help import OwnHelp
from .inputs import with_standard_input
from .options import (
    MODEL_ARGUMENTS,
    MODEL_SPELLINGS,
    Debug,
    Quiet,
    Verbose,
    flat_parameters,
    option_groups,
    panel_of,
    with_groups,
    with_word,
)
from .outputs import output_folder, with_standard_output
from .usage import (
    ALIASES,
    USAGE_ERROR,
    completed_hint,
    explain,
    gathered,
    given_twice,
    mistaken,
    with_model_as_argument,
)

HiddenDebug = Annotated[bool, typer.Option("--debug", hidden=True)]
EXAMPLES = (
    "gguftools convert checkpoint/ --outtype Q4_K_M",
    'gguftools generate model-Q4_K_M.gguf -p "It is a truth" -n 64',
    "gguftools divergence model-f16.gguf model-Q4_K_M.gguf -f text.txt",
    "gguftools COMMAND --help",
)
PACKAGES = ("quants", "archs", "runtime", "gguftools")


def build_app(version: str, modules: Mapping[str, ModuleType], called: str | None = None) -> typer.Typer:
    """Build the Typer app. modules: by command; each has the function of that name, EXAMPLES, GROUP (its place in
    --help) and perhaps PANELS (titles of options in help); its docstring is the help text.

    called: the one command that will run, if that is known: the others get only their names and one-line texts.
    """
    app = typer.Typer(
        cls=Commands,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        epilog="\n".join(EXAMPLES),
        context_settings={"obj": (version, modules, called)},
    )

    @app.callback()
    def options(
        version: Annotated[
            bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
        ] = False,
        quiet: Quiet = False,
        verbose: Verbose = False,
        debug: Debug = False,
    ) -> None:
        """Convert Hugging Face checkpoints to GGUF, quantize, edit and run them, and measure what quantizing costs."""
        terminal.quiet, terminal.verbose, terminal.debug = quiet, verbose, debug

    for name, module in modules.items():
        function = getattr(module, name.replace("-", "_"))
        purpose = inspect.getdoc(function) or module.__doc__
        command = app.command(
            name,
            cls=Command,
            help=purpose,
            epilog="\n".join(module.EXAMPLES),
            rich_help_panel=getattr(module, "GROUP", None),
        )
        panels = getattr(module, "PANELS", {})
        command(with_common_options(function, panels) if called in (None, name) else lambda: None)
    return app


def _print_version(context: typer.Context, wanted: bool) -> None:
    if wanted:
        typer.echo(f"gguftools {context.obj[0]}")
        raise typer.Exit


class Command(OwnHelp, TyperCommand):
    """A command that refuses options which exclude each other."""

    @property
    def panels(self) -> Mapping[str, Sequence[str]]:
        """Return the command's own panels in order: titles with the names of options."""
        return getattr(self.callback, "panels", {})

    @property
    def model_argument(self) -> Any:
        """Return the argument that -m and --model give, too; None where there is none."""
        if any(MODEL_SPELLINGS[0] in each.opts for each in self.params):
            return None
        first = next((each for each in self.params if each.param_type_name == "argument"), None)
        return first if first is not None and first.name in MODEL_ARGUMENTS else None

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, gathered(str(self.name), args))

    def invoke(self, ctx: Any) -> Any:
        typed = {name for name in ctx.params if ctx.get_parameter_source(name).name == "COMMANDLINE"}
        if wrong := contradiction(self, {name for name in typed if ctx.params[name]}):
            from .ui import usage

            usage(*wrong)
        return super().invoke(ctx)


class Commands(OwnHelp, TyperGroup):
    """The commands. Errors that a user can cause are one line: exit code 2 for a wrong call, else 1."""

    words: Sequence[str] = ()

    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **options: Any) -> Any:
        self.words = list(args)
        command, words, before = self._called()
        with self._explained():
            if command is not None:
                whole = with_model_as_argument(command, words, bool(options.get("resilient_parsing")))
                self.words = [*before, str(command.name), *whole]
            return super().make_context(info_name, list(self.words), *rest, **options)

    def invoke(self, ctx: Any) -> Any:
        with terminal.one_call():
            return self._invoke(ctx)

    def _invoke(self, ctx: Any) -> Any:
        try:
            with interruption.working(), self._explained():
                self._refuse_mistakes()
                return super().invoke(ctx)
        except (KeyboardInterrupt, Exception) as error:
            if terminal.debug or isinstance(error, (typer.Exit, USAGE_ERROR)) or not _show(error, self._worded):
                raise
            raise typer.Exit(1) from None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command of that name, and its words without old spellings."""
        name, command, rest = super().resolve_command(ctx, args)
        if ctx is not None and ctx.resilient_parsing:  # the shell completes the last word
            return name, command, rest
        for before, word in zip(("", *rest), rest, strict=False):
            if not word or (word.startswith("--") and word.endswith("=")):
                raise USAGE_ERROR(f"{word or before or 'an argument'} is given without a value")
        split = [word.partition("=") for word in rest]
        words = [ALIASES.get(str(name), {}).get(flag, flag) + sign + value for flag, sign, value in split]
        if twice := given_twice(command, words, ctx):
            raise USAGE_ERROR(f"{twice} is given twice; it takes one value")
        return name, command, words

    def _called(self) -> tuple[Any, Sequence[str], Sequence[str]]:
        """Return the called command (None if none has that name), the words after it and the words before it."""
        place = next((i for i, word in enumerate(self.words) if not word.startswith("-")), len(self.words))
        command = self.commands.get(self.words[place]) if place < len(self.words) else None
        return command, self.words[place + 1 :], self.words[:place]

    def _refuse_mistakes(self) -> None:
        """End the program where the call has a known mistake, such as an option of another program."""
        command, words, before = self._called()
        terminal.worded = str if command is None else functools.partial(in_options, command=command)
        if command is not None and (wrong := mistaken(command, words, before)):
            from .ui import usage

            usage(*wrong)

    def _worded(self, error: Any) -> Any:
        """Word an error for the called command: name its options, and show the whole call in the hint."""
        command, words, before = self._called()
        if command is None:
            return error
        error.args = (terminal.worded(str(error)),)
        if error.hint:
            error.hint = terminal.worded(error.hint)
            if "`gguftools " in error.hint:
                error.hint = completed_hint(error.hint, command, words, before)
        return error

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except USAGE_ERROR as error:
            if type(error).__name__ == "NoArgsIsHelpError":
                raise
            from .ui import usage

            version, modules, called = self.context_settings["obj"]
            whole: Any = typer.main.get_command(build_app(version, modules)) if called else self
            usage(*explain(error, self.words, whole.commands))


def with_common_options(
    command: Callable[..., None], panels: Mapping[str, Sequence[str]] | None = None
) -> Callable[..., None]:
    """Return the command with the options that all share, and with groups of options as single ones.

    panels: titles of its options in help, with their names.
    """

    def run(*, quiet: Quiet = False, verbose: Verbose = False, debug: HiddenDebug = False, **options: Any) -> None:
        terminal.quiet |= quiet
        terminal.verbose |= verbose
        terminal.debug |= debug
        name = command.__name__.replace("_", "-")
        given = with_standard_output(name, with_standard_input(options))
        with _warned(), _logged() if terminal.verbose else nullcontext(), output_folder(name, given):
            command(**with_groups({name: _with_urls(value) for name, value in given.items()}, groups))

    panels = panels or {}
    own, common = (inspect.signature(each, eval_str=True).parameters.values() for each in (command, run))
    groups = option_groups(own)
    parameters = [with_word(each, panel_of(each.name, panels)) for each in flat_parameters(own)]
    parameters += [each for each in common if each.kind is each.KEYWORD_ONLY]
    functools.update_wrapper(run, command)
    run.panels = panels  # type: ignore[attr-defined]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def _with_urls(value: Any) -> Any:
    """Return a path that was made of a URL as one that is the URL; of a list, each."""
    if isinstance(value, Path):
        from ..io.stores.path import located  # here, because it imports numpy

        return located(value)
    return [_with_urls(each) for each in value] if isinstance(value, list) else value


@contextmanager
def _warned() -> Iterator[None]:
    """Print warnings of the packages on stderr, e.g. about files that a killed run left."""
    import logging

    from .ui import note

    class Warned(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            note(f"warning: {record.getMessage()}")

    handler = Warned(logging.WARNING)
    for name in PACKAGES:
        logging.getLogger(name).addHandler(handler)
    try:
        yield
    finally:
        for name in PACKAGES:
            logging.getLogger(name).removeHandler(handler)


def _memory_used() -> str:
    """Return a text with the peak memory of this process; "" on Windows, where Python cannot measure it."""
    try:
        import resource
    except ImportError:
        return ""
    return f"; {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000:.0f} MB of memory at peak"


@contextmanager
def _logged() -> Iterator[None]:
    """Print the log of the packages on stderr."""
    import logging
    import sys
    import time

    from ..metadata.visible import visible

    class Logged(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno >= logging.WARNING:
                return  # `_warned` shows it
            terminal.put(sys.stderr, f"{time.perf_counter() - start:8.3f} s  {visible(record.getMessage())}")

    start, handler = time.perf_counter(), Logged()
    levels = [logging.getLogger(name).level for name in PACKAGES]
    for name in PACKAGES:
        logging.getLogger(name).setLevel(logging.INFO)
        logging.getLogger(name).addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger(__name__).info("done%s", _memory_used())
        for name, level in zip(PACKAGES, levels, strict=True):
            logging.getLogger(name).removeHandler(handler)
            logging.getLogger(name).setLevel(level)


def _show(error: BaseException, worded: Callable[[Any], Any]) -> bool:
    """Print an error that a user can cause; return False for a bug. worded: puts it in the command's words."""
    from quants.errors import GgufToolsError
    from quants.threads import HINT

    from .ui import print_error

    if isinstance(error, KeyboardInterrupt) or interruption.arrived:
        interruption.leave()
    if isinstance(error, BrokenPipeError):
        return True  # the reader has closed our output
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        error = GgufToolsError("no more threads can be started", HINT)
    if isinstance(error, (OSError, MemoryError)):
        error = GgufToolsError(f"{type(error).__name__}: {error}")
    if not isinstance(error, GgufToolsError):
        return False
    print_error(worded(error))
    return True
