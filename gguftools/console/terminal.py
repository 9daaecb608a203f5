"""What output goes to: what it can show, how wide it is, rich's console where it is a terminal."""

import codecs
import os
import shutil
import sys
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, TextIO

from ..metadata.visible import escape

if TYPE_CHECKING:
    from rich.console import Console

READABLE = {"×": "x", "…": "...", "±": "+-", "–": "-", "—": "-", "·": "*", "’": "'"}

quiet = verbose = debug = False  # as the user wants it: results and errors alone; what is done, too; tracebacks
worded: Callable[[str], str] = str  # what the library says, in the words of the command that was called


def prepare_streams() -> None:
    """Have every stream: closed ones lead nowhere, and what an encoding does not have becomes something readable."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets this number, the lowest that is free
    codecs.register_error("readable", _readable)
    for name in ("stdin", "stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: PTH123, SIM115
        elif name != "stdin":
            stream.reconfigure(errors="readable")


def _readable(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(READABLE.get(each) or escape(each) for each in lacking), error.end


def flushed(code: Any) -> Any:
    """Write out what is left of the output; the exit code, 1 where that fails and all was well."""
    try:
        sys.stdout.flush()
    except OSError as error:
        return code or unwritable(error)
    return code


def unwritable(error: OSError) -> int:
    """Say that the output cannot be written, unless whoever read it has closed it; the exit code."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left would fail again
    if not isinstance(error, BrokenPipeError):
        put(sys.stderr, f"error: the output cannot be written: {error.strerror}")
    return 1


def is_unicode(stream: TextIO) -> bool:
    """Whether all characters can be written there."""
    return (stream.encoding or "utf-8").lower().startswith("utf")


def width() -> int:
    """Columns of the terminal; the variable COLUMNS wins."""
    return shutil.get_terminal_size().columns


@cache
def console(stderr: bool) -> "Console":
    """What draws on stdout or stderr where that is a terminal; only there, because rich takes long to import."""
    from rich.console import Console

    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)


def put(stream: TextIO, *parts: str | tuple[str, str]) -> None:
    """Put a line on stdout or stderr. parts: texts; beside a text may be its style on a terminal, such as "bold"."""
    if stream.isatty():
        from rich.text import Text

        console(stream is sys.stderr).print(Text.assemble(*parts), soft_wrap=True)
        return
    stream.write("".join(part if isinstance(part, str) else part[0] for part in parts) + "\n")
    if stream is sys.stderr:
        stream.flush()
