"""Write the text of --help: names are never cut, however narrow the terminal; every command ends with examples."""

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from . import terminal
from .options import HIDDEN_SPELLINGS, MODEL_SPELLINGS, SHARED_PANELS, panel_of

MAX_WIDTH = 100  # columns; longer lines of prose are hard to read
MIN_TEXT = 40  # columns for the meaning of an option next to its name; with fewer it goes below
MAX_NAME = 32
GAP = 2
GROUPS = ("Make", "Inspect", "Edit", "Measure", "Run", "Publish", "Expert")  # of commands, in this order
OTHERS = "Other commands"  # those of other packages that name no group
OPTIONS = "Options"
HELP_SPELLINGS = ("-h", "--help")
T = TypeVar("T")


class OwnHelp:
    """A command or group whose help this module writes."""

    def get_help_option_names(self, ctx: Any) -> list[str]:
        """Return the spellings of --help, the same for each context: click keeps those of the first one."""
        return list(HELP_SPELLINGS)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write("\n".join(page(self, ctx)))

    def format_usage(self, ctx: Any, formatter: Any) -> None:
        formatter.write("\n".join(usage(self, ctx)))


def page(command: Any, ctx: Any) -> Iterator[str]:
    """Yield the lines of a command's help, or of a group's."""
    width = min(terminal.width(), MAX_WIDTH)
    yield from usage(command, ctx)
    for paragraph in (command.help or "").split("\n\n"):
        yield ""
        yield from indented(paragraph, 2, width)
    for title, entries in sections(command, ctx):
        yield from ("", f"{title}:", *definitions(entries, width))
    if command.epilog:
        yield from ("", "Examples:", *(f"  {line}" for line in command.epilog.splitlines()))


def sections(command: Any, ctx: Any) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield titles with their entries, names and meanings: commands by group, arguments, options by panel."""
    subcommands = getattr(command, "commands", {})
    for title, grouped in by_group(subcommands).items():
        yield title, [(name, subcommands[name].help.partition("\n\n")[0]) for name in grouped]
    parameters = [each for each in command.get_params(ctx) if not getattr(each, "hidden", False)]
    arguments = [each for each in parameters if each.param_type_name != "option"]
    if arguments:
        yield "Arguments", [(argument_name(command, each), each.help or "") for each in arguments]
    for title, options in by_panel(command, parameters).items():
        yield title, [(names(each), explained(each)) for each in options]


def by_group(commands: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the names of commands by their groups."""
    titled = ((each.rich_help_panel or OTHERS, name) for name, each in commands.items())
    return _by_title(titled, (*GROUPS, OTHERS))


def by_panel(command: Any, parameters: Iterable[Any]) -> dict[str, list[Any]]:
    """Return the options among a command's parameters by their panels: those of all commands last.

    The command's own panels have their options in the order that they are named in, others in that of the parameters.
    """
    titled = [
        (getattr(each, "rich_help_panel", None) or panel_of(each.name or "", {}) or OPTIONS, each)
        for each in parameters
        if each.param_type_name == "option"
    ]
    others = (title for title, _ in titled if title not in SHARED_PANELS)
    own: Mapping[str, Sequence[str]] = getattr(command, "panels", {})
    panels = _by_title(titled, (OPTIONS, *own, *others, *SHARED_PANELS))
    for title in own.keys() & panels.keys():
        panels[title].sort(key=lambda option: own[title].index(option.name))
    return panels


def _by_title(entries: Iterable[tuple[str, T]], titles: Iterable[str]) -> dict[str, list[T]]:
    """Return the entries by title, in the order of the titles, without empty ones."""
    groups: dict[str, list[T]] = {title: [] for title in titles}
    for title, entry in entries:
        groups.setdefault(title, []).append(entry)
    return {title: group for title, group in groups.items() if group}


def usage(command: Any, ctx: Any) -> list[str]:
    """Return the line that shows how a command is called."""
    own = [metavar(each) for each in command.params if each.param_type_name == "argument"]
    rest = ["COMMAND", "..."] if hasattr(command, "commands") else own
    return list(
        indented(" ".join((f"Usage: {ctx.command_path}", "[OPTIONS]", *rest)), 0, min(terminal.width(), MAX_WIDTH))
    )


def metavar(argument: Any) -> str:
    """Return an argument as in a call: SOURCE, [SOURCE] if it is optional, FILES... if there may be several."""
    name = argument.metavar or argument.name.upper().replace("_", "-")
    if argument.nargs == -1 and not name.endswith(("…", "...")):
        name += "..."
    return name if argument.required else f"[{name}]"


def argument_name(command: Any, argument: Any) -> str:
    """Return the title of an argument's explanation: MODEL, or "MODEL, -m MODEL" if it may also be an option."""
    name = metavar(argument).strip("[]")
    one = name.removesuffix("S...")
    return f"{name}, {MODEL_SPELLINGS[0]} {one}" if argument is getattr(command, "model_argument", None) else name


def shown_spellings(option: Any) -> list[str]:
    """Return the spellings of an option that help shows, the short one first."""
    return [*sorted((each for each in option.opts if each not in HIDDEN_SPELLINGS), key=len), *option.secondary_opts]


def names(option: Any) -> str:
    """Return an option's spellings, the short one first, with a word for its value."""
    spelled = ", ".join(shown_spellings(option))
    return spelled if option.is_flag else f"{spelled} {option.metavar or 'VALUE'}"


def explained(option: Any) -> str:
    """Return what an option does, whether it is required or repeatable, and its default."""
    remarks = ["required"] if option.required else ["repeatable"] if option.multiple else []
    if option.default and not (option.is_flag or callable(option.default)):
        remarks.append(f"default: {option.default}")
    return f"{option.help or ''} [{', '.join(remarks)}]" if remarks else option.help or ""


def definitions(entries: Sequence[tuple[str, str]], width: int) -> Iterator[str]:
    """Yield the lines of names and their meanings: next to each other, or below if a name or the terminal needs it."""
    widest = min(max(len(name) for name, _ in entries), MAX_NAME)
    start = 2 + widest + GAP
    if width - start < MIN_TEXT:
        start = 8
    for name, text in entries:
        lines = fold(text, width - start)
        if 2 + len(name) + GAP <= start:
            yield f"  {name}{' ' * (start - 2 - len(name))}{lines.pop(0)}".rstrip()
        else:
            yield f"  {name}"
        yield from (" " * start + line for line in lines)


def indented(text: str, by: int, width: int) -> Iterable[str]:
    return (" " * by + line for line in fold(text, width - by))


def fold(text: str, width: int) -> list[str]:
    """Return a text in lines of at most `width`, broken at spaces; a longer word has a line of its own."""
    return textwrap.wrap(text, max(1, width), break_long_words=False, break_on_hyphens=False) or [""]
