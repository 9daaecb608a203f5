"""Prepare the output streams: encoding, width, and rich's console for a terminal."""

import codecs
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, TextIO

from ..metadata.visible import escape

if TYPE_CHECKING:
    from rich.console import Console

READABLE = {"×": "x", "…": "...", "±": "+-", "–": "-", "—": "-", "·": "*", "’": "'"}

quiet = verbose = debug = False  # print only results and errors; also the log; tracebacks
worded: Callable[[str], str] = str  # translates the library's texts into the called command's options


@contextmanager
def one_call() -> Iterator[None]:
    """Restore the settings of the output when a command ends: the next one in this process has its own."""
    global quiet, verbose, debug, worded
    before = quiet, verbose, debug, worded
    try:
        yield
    finally:
        quiet, verbose, debug, worded = before


def prepare_streams() -> None:
    """Open closed streams on the null device; replace characters that an encoding lacks by readable ones."""
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
    """Flush the output; return the exit code, which is 1 if that fails."""
    try:
        sys.stdout.flush()
    except OSError as error:
        return code or unwritable(error)
    return code


def unwritable(error: OSError) -> int:
    """Report that the output cannot be written, unless its reader closed it; return the exit code."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # so that flushing the rest does not fail again
    if not isinstance(error, BrokenPipeError):
        put(sys.stderr, f"error: cannot write the output: {error.strerror}")
    return 1


def is_unicode(stream: TextIO) -> bool:
    """Return True if all characters can be written there."""
    return (stream.encoding or "utf-8").lower().startswith("utf")


def width() -> int:
    """Return columns of the terminal; the variable COLUMNS wins."""
    return shutil.get_terminal_size().columns


@cache
def console(stderr: bool) -> "Console":
    """Return what draws on stdout or stderr where that is a terminal; only there, because rich takes long to import."""
    from rich.console import Console

    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)


def put(stream: TextIO, *parts: str | tuple[str, str]) -> None:
    """Put a line on stdout or stderr. parts: texts; a tuple is a text and its style on a terminal, such as "bold"."""
    if stream.isatty():
        from rich.text import Text

        console(stream is sys.stderr).print(Text.assemble(*parts), soft_wrap=True)
        return
    stream.write("".join(part if isinstance(part, str) else part[0] for part in parts) + "\n")
    if stream is sys.stderr:
        stream.flush()
