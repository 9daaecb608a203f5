"""Look at every hint that a test sees on the command line: the commands and options that it names must exist.

`watch` has the command line raise AssertionError where a hint names something that its reader cannot type.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from functools import cache
from typing import Any

CALL = re.compile(r"`gguftools ([^`]+)`|\bgguftools (?=[a-z-]+ [A-Z`-])([^`;,]+)")
OPTION = re.compile(r"(?<![\w/.-])--?[a-z][\w-]*")
# Calls of other programs, and their options where a hint says that these are left out.
OTHERS = re.compile(r"\b(pip|pipx|hf|ulimit|ffmpeg|mkdir)\b[^,;]*|-\S+ is not needed: [^;]*")
GLOBAL = {"--help", "-h", "--version", "--install-completion", "--show-completion"}


@cache
def options() -> dict[str, set[str]]:
    """The spellings of every command's options."""
    import typer.main

    from gguftools.__main__ import build_app
    from gguftools.cli.usage import options_of

    program: Any = typer.main.get_command(build_app())
    return {name: options_of(command) | GLOBAL for name, command in program.commands.items()}


def calls(hint: str) -> list[list[str]]:
    """The words of each call of ours that a hint shows."""
    found = []
    for quoted, bare in CALL.findall(hint):
        try:
            found.append(shlex.split(quoted or bare))
        except ValueError:  # a quote in a sentence
            found.append((quoted or bare).split())
    return found


def wrong_names(hint: str, command: str | None) -> list[str]:
    """What a hint names that there is not. command: the one whose error it follows, None if that is not known."""
    wrong, named = [], set[str]()
    for words in calls(hint):
        name = next((word for word in words if not word.startswith("-")), None)
        if name is None:
            wrong += [word for word in words if word not in GLOBAL | options()["show"]]
        elif name not in options():
            wrong.append(name)
        else:
            named.add(name)
            wrong += [word for word in _options(words) if word not in options()[name]]
    if command is None:
        known = set().union(*options().values())
    else:
        known = set().union(*(options()[each] for each in named | {command} if each in options()), GLOBAL)
        known |= set().union(*(own for name, own in options().items() if re.search(rf"\b{name}\b", hint)))
    rest = OTHERS.sub("", CALL.sub("", hint))
    return wrong + [option for option in OPTION.findall(rest) if option not in known]


def _options(words: Sequence[str]) -> list[str]:
    names = [word.partition("=")[0] for word in words]
    return [name if name.startswith("--") else name[:2] for name in names if OPTION.fullmatch(name)]


def watch() -> None:
    """Look at every hint of the command line in this process and those forked from it."""
    from gguftools.cli import app, ui

    show, invoke = ui.print_error, app.Commands.invoke
    command: str | None = None

    def invoked(self: Any, ctx: Any) -> Any:
        nonlocal command
        command = next((word for word in self.words if word in self.commands), None)
        return invoke(self, ctx)

    def shown(error: Any) -> None:
        show(error)
        if error.hint and (wrong := wrong_names(error.hint, command)):
            raise AssertionError(f"{command}: the hint names {', '.join(wrong)}, which there is not: {error.hint}")

    ui.print_error = shown
    app.Commands.invoke = invoked  # type: ignore[method-assign]
