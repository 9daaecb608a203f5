"""A bar for long work, on one line of the terminal; nothing where stderr is none, or the user wants quiet."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from . import terminal

BytesProgress = Callable[[int, int, str], None]
StepProgress = Callable[[int, int, float], None]

BETWEEN = 0.1  # seconds from one drawing to the next


def bytes_progress(title: str) -> AbstractContextManager[BytesProgress]:
    """A bar for work counted in bytes, which is told (done, of how many, what it is at)."""
    return _bar(title, "bytes_details", str)


def window_progress(title: str, value: str = "") -> AbstractContextManager[StepProgress]:
    """A bar for work counted in windows, which is told (done, of how many, a figure); named `value`, that is shown."""
    return _bar(title, "window_details", lambda figure: f"{value} {figure:.4f}" if value else "")


@contextmanager
def _bar(title: str, details: str, noted: Callable[[Any], str]) -> Iterator[Callable[[int, int, Any], None]]:
    """A bar with those of `bars`' details; noted: what is shown of the last thing that it is told."""
    if terminal.quiet or not sys.stderr.isatty():
        yield lambda done, total, note: None
        return
    from ..metadata.visible import visible
    from . import bars

    drawn = 0.0

    def update(done: int, total: int, note: Any) -> None:
        nonlocal drawn
        now = time.monotonic()
        if now - drawn >= BETWEEN:
            drawn = now
            bar.update(task, completed=done, total=total or None, note=visible(noted(note)), refresh=True)

    with bars.Bar(getattr(bars, details)(), terminal.console(stderr=True)) as bar:
        task = bar.add_task(visible(title), total=None, note="")
        yield update
