"""A bar for long work, on one line of the terminal; nothing where stderr is none, or the user wants quiet."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from . import terminal

BytesProgress = Callable[[int, int, str], None]
StepProgress = Callable[[int, int, float], None]

BETWEEN = 0.1  # seconds from one drawing to the next


@contextmanager
def bytes_progress(title: str) -> Iterator[BytesProgress]:
    """A bar for work counted in bytes, which is told (done, of how many, what it is at)."""
    with _bar(title, in_bytes=True) as update:
        yield update


@contextmanager
def window_progress(title: str, value: str = "") -> Iterator[StepProgress]:
    """A bar for work counted in windows, which is told (done, of how many, a figure); named `value`, that is shown."""
    with _bar(title, in_bytes=False) as update:
        yield lambda done, total, figure: update(done, total, f"{value} {figure:.4f}" if value else "")


@contextmanager
def _bar(title: str, in_bytes: bool) -> Iterator[BytesProgress]:
    if terminal.quiet or not sys.stderr.isatty():
        yield lambda done, total, note: None
        return
    from ..metadata.visible import visible
    from . import bars

    drawn = 0.0

    def update(done: int, total: int, note: str) -> None:
        nonlocal drawn
        now = time.monotonic()
        if now - drawn >= BETWEEN:
            drawn = now
            bar.update(task, completed=done, total=total or None, note=visible(note), refresh=True)

    details = bars.bytes_details() if in_bytes else bars.window_details()
    with bars.Bar(details, terminal.console(sys.stderr)) as bar:
        task = bar.add_task(visible(title), total=None, note="")
        yield update
