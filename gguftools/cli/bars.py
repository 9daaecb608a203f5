"""Draw progress bars with rich; imported only where there is a terminal."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rich import progress
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.progress import ProgressColumn, Task
from rich.table import Column, Table
from rich.text import Text

FREE = 3  # cells at the end of the line, where the terminal puts `^C` without beginning another line
MIN_TITLE, MIN_BAR = 12, 10  # cells, as all widths below
NOTE = 24
WHOLE = Column(no_wrap=True)


class Bar(progress.Progress):
    """A title, a bar, and the first columns that fit; the line is removed at the end."""

    def __init__(self, details: Sequence[tuple[ProgressColumn, int]], console: Console) -> None:
        """details: columns with the cells that they may take."""
        self.details, self.terminal = details, console
        bar = progress.BarColumn(None, table_column=Column(width=MIN_BAR, ratio=1))
        self.always = (_Cut(lambda task: task.description), bar)
        super().__init__(
            *self.always,
            console=console,
            transient=True,
            disable=not console.is_interactive,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,  # without a thread, which would not survive a fork
        )

    def make_tasks_table(self, tasks: Iterable[Task]) -> Table:
        """Return the line; without numbers while it is not known how much there is to do."""
        width, known = max(1, self.terminal.width - FREE), all(task.total for task in self.tasks)
        room = width - MIN_TITLE - MIN_BAR - 1
        shown: list[ProgressColumn] = [*self.always]
        for column, cells in self.details:
            room -= cells + 1
            if room >= 0 and known:
                shown.append(column)
        self.columns = tuple(shown)
        table = super().make_tasks_table(tasks)
        table.width = width
        return table


def bytes_details() -> list[tuple[ProgressColumn, int]]:
    """Return the columns of work counted in bytes."""
    return [
        (progress.TaskProgressColumn(table_column=WHOLE), 4),
        (progress.DownloadColumn(table_column=WHOLE), 14),
        (progress.TimeRemainingColumn(compact=True, table_column=WHOLE), 7),
        (_Speed(table_column=WHOLE), 10),
        (_Cut(lambda task: str(task.fields["note"]), Column(width=NOTE, no_wrap=True)), NOTE),
    ]


def window_details() -> list[tuple[ProgressColumn, int]]:
    """Return the columns of work counted in chunks; its note is a figure."""
    return [
        (progress.TaskProgressColumn(table_column=WHOLE), 4),
        (progress.MofNCompleteColumn(table_column=WHOLE), 9),
        (progress.TextColumn("{task.fields[note]}", markup=False, table_column=WHOLE), 12),
        (progress.TimeRemainingColumn(compact=True, table_column=WHOLE), 7),
        (_Rate(table_column=WHOLE), 10),
    ]


class _Speed(progress.TransferSpeedColumn):
    """Bytes a second; nothing while that is not known."""

    def render(self, task: Task) -> Text:
        return super().render(task) if task.speed else Text("")


class _Rate(ProgressColumn):
    """Steps a second, or seconds a step; nothing while that is not known."""

    def render(self, task: Task) -> Text:
        if not task.speed:
            return Text("")
        return Text(f"{task.speed:.1f}/s" if task.speed >= 1 else f"{1 / task.speed:.1f} s each", "progress.data.speed")


class _Cut(ProgressColumn):
    """A text of the task, cut in its middle if it is too long."""

    def __init__(self, text: Callable[[Task], str], table_column: Column | None = None) -> None:
        self.text = text
        super().__init__(table_column)

    def render(self, task: Task) -> "Shortened":
        return Shortened(self.text(task))


@dataclass(frozen=True)
class Shortened:
    """A text on one line, cut in its middle: file names usually differ at their ends."""

    text: str

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, max(1, cell_len(self.text))).with_maximum(options.max_width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(shorten(self.text, options.max_width), no_wrap=True)


def shorten(text: str, width: int) -> str:
    """Return a text cut in its middle to a width of at least 1."""
    cut, start, end = text, len(text) // 2, (len(text) + 1) // 2
    while cell_len(cut) > width:
        start, end = (start - 1, end) if start > len(text) - end else (start, end + 1)
        cut = f"{text[: max(start, 0)]}…{text[end:]}"
    return cut
