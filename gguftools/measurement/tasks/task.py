"""Tasks, and reading files of tasks."""

from dataclasses import dataclass
from pathlib import Path

from archs import bounded_files
from quants.errors import FileError

from ...io.naming import hint_for_absent


@dataclass(frozen=True)
class Task:
    """A task.

    where: in the file, for errors. texts: the context with each answer; right: the numbers of the right answers. bases:
    of a sentence with a gap, the text before the gap with each choice.
    """

    where: str
    texts: tuple[str, ...]
    right: frozenset[int]
    bases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Drawn:
    """Tasks drawn from a file with `available` tasks; left_out: lines that are no tasks, and why."""

    tasks: list[Task]
    available: int
    left_out: tuple[str, ...] = ()


def read_bytes(path: Path) -> bytes:
    """Return all bytes of a file. Raises FileError if it cannot be read, or is too large for a file of tasks."""
    try:
        return bounded_files.read_bytes(path, bounded_files.TASKS)
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror}", hint_for_absent(path)) from error


def read_lines(path: Path) -> list[str]:
    """Return the lines of a UTF-8 file as llama.cpp splits them: at line feeds only, the last of which does not count.

    Raises FileError.
    """
    try:
        text = read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise FileError(f"{path} is not UTF-8 text: byte {error.start} is {error.object[error.start]:#04x}") from error
    text = text.removesuffix("\n")
    return text.split("\n") if text else []
