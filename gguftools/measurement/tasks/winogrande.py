"""Winogrande (Sakaguchi et al. 2019): which of two words fills the gap of a sentence.

A line a task, CSV: `index,sentence with _ for the gap,choice 1,choice 2,answer`, where the answer is 1 or 2. Quotes may
stand around the sentence, so that it can have commas.
"""

import re
from pathlib import Path

from quants.errors import FileError

from .drawing import picked
from .task import Drawn, Task, read_lines

FORM = "index,sentence with _ for the gap,choice 1,choice 2,answer (1 or 2)"


def load(path: Path, tasks: int | None, seed: int) -> Drawn:
    """Draw tasks from a file, all by default. Raises FileError for an invalid file.

    As in llama-perplexity, lines that are no tasks are skipped, and so is the last line unless an empty one follows.
    """
    lines = read_lines(path)
    every, left_out = [], []
    for number, line in enumerate(lines[:-1], 1):
        task = _task(path, number, line)
        every.append(task) if isinstance(task, Task) else left_out.append(f"line {number} of {path} {task}")
    if not every:
        raise FileError(f"{path} has no tasks", f"at least 2 lines are needed, `{FORM}`; the last does not count")
    if lines[-1]:
        left_out.append(f"line {len(lines)} of {path} is the last, which llama-perplexity does not read")
    return Drawn([every[i] for i in picked(len(every), tasks, seed)], len(every), tuple(left_out))


def _task(path: Path, number: int, line: str) -> Task | str:
    """Return the task of a line, or why it is none."""
    commas = _commas(line)
    if len(commas) < 4:
        return f"has {len(commas)} of 4 commas outside of quotes"
    first, second, third, fourth = commas
    sentence, choices = line[first + 1 : second], (line[second + 1 : third], line[third + 1 : fourth])
    if sentence.startswith('"'):
        sentence = sentence[1:-1]
    before, gap, after = sentence.partition("_")
    if not gap:
        return "has no _ in its sentence"
    answer = re.match(r"\s*\+?0*([12])(?!\d)", line[fourth + 1 :])
    if answer is None:
        return f"has the answer {line[fourth + 1 :][:40]!r}, not 1 or 2"
    bases = tuple(before + choice for choice in choices)
    texts, right = tuple(base + after for base in bases), frozenset((int(answer[1]) - 1,))
    return Task(f"the task at line {number} of {path}", texts, right, bases)


def _commas(line: str) -> list[int]:
    """Return the positions of the first four commas outside quotes."""
    commas, quoted = [], False
    for i, letter in enumerate(line):
        if letter == '"':
            quoted = not quoted
        elif letter == "," and not quoted:
            commas.append(i)
            if len(commas) == 4:
                break
    return commas
