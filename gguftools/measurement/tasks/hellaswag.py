"""HellaSwag (Zellers et al. 2019): which of four endings follows.

Six lines a task: `activity: context`, the number of the right ending (0 to 3), and the four endings.
"""

from pathlib import Path

from quants.errors import FileError

from .drawing import shuffled
from .task import Drawn, Task, read_lines

LINES = 6
TASKS = 400


def load(path: Path, tasks: int | None, seed: int) -> Drawn:
    """Draw tasks from a file, 400 by default. Raises FileError for an invalid file."""
    lines = read_lines(path)
    if not lines:
        raise FileError(f"{path} has no tasks")
    if len(lines) % LINES:
        what = f"{path} has {len(lines)} lines; HellaSwag's tasks have {LINES} each"
        raise FileError(what, "a context, the number of the right ending, and 4 endings, without empty lines between")
    count = len(lines) // LINES
    return Drawn([_task(path, lines, LINES * i) for i in shuffled(count, tasks or TASKS, seed)], count)


def _task(path: Path, lines: list[str], at: int) -> Task:
    context, gold, *endings = lines[at : at + LINES]
    for i, line in enumerate(lines[at : at + LINES]):
        if not line.strip():
            raise FileError(f"{path}: line {at + i + 1} is empty")
    if gold.strip() not in ("0", "1", "2", "3"):
        raise FileError(f"{path}: line {at + 2} is {gold[:40]!r}; the number of the right ending, 0 to 3, is expected")
    texts = tuple(f"{context} {ending}" for ending in endings)
    return Task(f"the task at line {at + 1} of {path}", texts, frozenset((int(gold),)))
