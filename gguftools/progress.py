"""A bar for long work, on one line of the terminal; nothing where stderr is none, or the user wants quiet."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from . import terminal
from .tables import places, shorten
from .ui import size

BytesProgress = Callable[[int, int, str], None]
StepProgress = Callable[[int, int, float], None]

GAP = "  "
LEAST_BAR, MOST_BAR = 10, 30  # columns
LEAST_TITLE = LEAST_NOTE = 12
BETWEEN = 0.1  # seconds from one drawing to the next
RECENT = 15.0  # seconds whose average the rate is


@contextmanager
def bytes_progress(title: str) -> Iterator[BytesProgress]:
    """A bar for work counted in bytes, which is told (done, of how many, what it is at)."""
    with _bar(title, _bytes, size) as update:
        yield update


@contextmanager
def window_progress(title: str, value: str = "") -> Iterator[StepProgress]:
    """A bar for work counted in windows, which is told (done, of how many, a figure); named `value`, that is shown."""
    latest = ""

    def tell(done: int, total: int, figure: float) -> None:
        nonlocal latest
        latest = f"{GAP}{value} {figure:.4f}" if value else ""
        update(done, total, "")

    with _bar(title, lambda done, total: f"{done}/{total}{latest}", lambda rate: f"{rate:.3g}") as update:
        yield tell


def _bytes(done: int, total: int) -> str:
    number, unit = size(total).split()
    return f"{done * float(number) / total:.{2 if '.' in number else 0}f}/{number} {unit}"


@contextmanager
def _bar(
    title: str, amount: Callable[[int, int], str], speed: Callable[[float], str]
) -> Iterator[BytesProgress]:  # fmt: skip
    """amount: (done, total) as text. speed: what is done in a second, as text."""
    if terminal.quiet or not terminal.is_terminal(sys.stderr):
        yield lambda done, total, note: None
        return
    title, pace, drawn = terminal.visible(title), Pace(), 0.0

    def update(done: int, total: int, note: str) -> None:
        nonlocal drawn
        now = time.monotonic()
        if now - drawn < BETWEEN:
            return
        drawn, rate, figures = now, pace.at(now, done), []
        if total:
            figures += [f"{100 * done // total:3d} %", amount(done, total)]
        if total and rate:
            figures += [f"{clock((total - done) / rate)} left", f"{speed(rate)}/s"]
        part = done / total if total else None
        terminal.show_passing(line(title, part, figures, terminal.visible(note), terminal.width()))

    terminal.show_passing(line(title, None, (), "", terminal.width()))
    try:
        yield update
    finally:
        terminal.clear()


class Pace:
    """How fast a count grows: the average of the last seconds."""

    def __init__(self) -> None:
        self.seen: deque[tuple[float, int]] = deque()

    def at(self, now: float, count: int) -> float:
        """Counts a second; 0 while it is not known."""
        self.seen.append((now, count))
        while now - self.seen[0][0] > RECENT and len(self.seen) > 2:
            self.seen.popleft()
        then, before = self.seen[0]
        return (count - before) / (now - then) if now - then >= 1 else 0.0


def line(title: str, part: float | None, figures: Sequence[str], note: str, columns: int) -> str:
    """A title, a bar (unless it is not known which part is done), figures and a note on less than a line.

    Where that is narrow the note goes first, then the last figures; the title is shortened, and the bar has its room.
    """
    if part is None:
        return shorten(GAP.join(filter(None, (title, note))), columns - 1)
    shown, least = list(figures), LEAST_TITLE + LEAST_BAR + 4
    while len(shown) > 1 and columns - places(GAP.join(shown)) < least:
        shown.pop()
    room = columns - places(GAP.join(shown)) - 4
    title = shorten(title, max(LEAST_TITLE, room - MOST_BAR, room // 2))
    cells = max(1, min(MOST_BAR, room - places(title)))
    done = round(part * cells)
    text = GAP.join((f"{title} {'━' * done}{'─' * (cells - done)}", *shown))
    spare = columns - places(text) - 3
    return f"{text}{GAP}{shorten(note, spare)}" if note and spare >= LEAST_NOTE else text


def clock(seconds: float) -> str:
    """A duration as people read it: 0:07, 12:30, 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
