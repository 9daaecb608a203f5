"""The text of --help: names are never cut, however narrow the terminal; every command ends with examples."""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from . import terminal

MOST = 100  # columns that prose is still read well in
LEAST_TEXT = 40  # columns for what an option does beside its name; with fewer it goes below
WIDEST_NAME = 32
GAP = 2


class OwnHelp:
    """A command or group whose help is written here."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write("\n".join(page(self, ctx)))

    def format_usage(self, ctx: Any, formatter: Any) -> None:
        formatter.write("\n".join(usage(self, ctx)))


def page(command: Any, ctx: Any) -> Iterator[str]:
    """The lines of a command's help, or of a group's."""
    width = min(terminal.width(), MOST)
    yield from usage(command, ctx)
    yield ""
    yield from indented(command.help or "", 2, width)
    parameters = [each for each in command.get_params(ctx) if not getattr(each, "hidden", False)]
    options = [each for each in parameters if each.param_type_name == "option"]
    sections = {
        "Arguments": [(metavar(each).strip("[]"), each.help) for each in parameters if each not in options],
        "Options": [(names(each), explained(each)) for each in options],
        "Commands": [(name, each.help.partition("\n\n")[0]) for name, each in getattr(command, "commands", {}).items()],
    }
    for title, entries in sections.items():
        if entries:
            yield from ("", f"{title}:", *definitions(entries, width))
    if command.epilog:
        yield from ("", "Examples:", *(f"  {line}" for line in command.epilog.splitlines()))


def usage(command: Any, ctx: Any) -> list[str]:
    """How the command is called."""
    own = [metavar(each) for each in command.params if each.param_type_name == "argument"]
    rest = ["COMMAND", "..."] if hasattr(command, "commands") else own
    return list(indented(" ".join((f"Usage: {ctx.command_path}", "[OPTIONS]", *rest)), 0, min(terminal.width(), MOST)))


def metavar(argument: Any) -> str:
    """An argument as one types it: SOURCE, [SOURCE] where it may be left out, FILES... where there may be several."""
    name = argument.metavar or argument.name.upper().replace("_", "-")
    if argument.nargs == -1 and not name.endswith(("…", "...")):
        name += "..."
    return name if argument.required else f"[{name}]"


def names(option: Any) -> str:
    """How an option is spelled, the short name in front, with a word for its value."""
    spelled = ", ".join((*sorted(option.opts, key=len), *option.secondary_opts))
    return spelled if option.is_flag else f"{spelled} {option.metavar or 'VALUE'}"


def explained(option: Any) -> str:
    """What an option does, whether it must be given or may be given often, and what it is if it is not."""
    remarks = ["required"] if option.required else ["repeatable"] if option.multiple else []
    if option.default and not (option.is_flag or callable(option.default)):
        remarks.append(f"default: {option.default}")
    return f"{option.help or ''} [{', '.join(remarks)}]" if remarks else option.help or ""


def definitions(entries: Sequence[tuple[str, str]], width: int) -> Iterator[str]:
    """Names with their meaning beside them, or below where a name is long or the terminal narrow."""
    widest = min(max(len(name) for name, _ in entries), WIDEST_NAME)
    start = 2 + widest + GAP
    if width - start < LEAST_TEXT:
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
    """A text in lines of at most `width`, broken at spaces; a longer word has a line of its own."""
    return textwrap.wrap(text, max(1, width), break_long_words=False, break_on_hyphens=False) or [""]
