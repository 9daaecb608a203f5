"""Tables: in a pipe a row is one line; on a terminal rich folds it, and cuts no word that fits the terminal."""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType

GAP = "  "
WIDEST = 100  # what a column is padded to at most; a longer cell juts out of its row alone

_SINGLE = re.compile("[\x00-\u02ff\u2010-\u2027\u2190-\u21ff]*")  # letters that all take one place


def places(text: str) -> int:
    """How many places of a terminal a text takes: two for a wide letter, none for a mark on another."""
    if text.isascii() or _SINGLE.fullmatch(text):
        return len(text)
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return len(text) + wide - sum(map(bool, map(unicodedata.combining, text)))


def table(rows: Sequence[Sequence[str]], right: str = "") -> Iterator[str]:
    """The text of each row, columns under each other. right: an "r" for each column that is aligned right ("lrr")."""
    padded = []  # without rich, which takes its time for long tables
    for i, column in enumerate(zip(*rows, strict=True)):
        taken = list(map(places, column))
        most = min(max(taken), WIDEST)
        cells = zip(column, (" " * (most - size) for size in taken), strict=True)
        padded.append([gap + cell if right[i : i + 1] == "r" else cell + gap for cell, gap in cells])
    return (GAP.join(cells).rstrip(" ") for cells in zip(*padded, strict=True))


def folded(rows: Sequence[Sequence[str]], right: str, width: int) -> "Iterator[RenderableType]":
    """The same for rich, in lines of at most `width`, the first row bold.

    Where a word is wider than its column, its cell has lines of its own, and the columns after it go below.
    """
    from rich.padding import Padding
    from rich.table import Column, Table
    from rich.text import Text

    numbers = [right[i : i + 1] == "r" for i in range(len(rows[0]))]  # are not folded
    words = [
        [max(map(places, (cell,) if whole else cell.split(" "))) for cell, whole in zip(row, numbers, strict=True)]
        for row in rows
    ]
    widths = _widths(rows, words, width - len(GAP) * (len(rows[0]) - 1))

    def grid() -> Table:
        columns = (
            Column(width=most, justify="right" if whole else "left", overflow="fold")
            for most, whole in zip(widths, numbers, strict=True)
        )
        return Table.grid(*columns, padding=(0, len(GAP), 0, 0))

    body, style = grid(), "bold"
    for row, wide in zip(rows, words, strict=True):
        line = [Text("") for _ in row]
        for i, cell in enumerate(row):
            if wide[i] <= widths[i]:
                line[i] = Text(cell)
                continue
            if any(line):
                body.add_row(*line, style=style)
            yield body
            indent = min(sum(widths[:i]) + len(GAP) * i, max(0, width - wide[i]))
            yield Padding(Text(cell, style, overflow="fold"), (0, 0, 0, indent))
            body, line = grid(), [Text("") for _ in row]
        if any(line):
            body.add_row(*line, style=style)
        style = ""
    yield body


def _widths(rows: Sequence[Sequence[str]], words: Sequence[Sequence[int]], room: int) -> list[int]:
    """Of each column: of its words, from the short ones on while there is room, then of whole cells, from the left."""
    widths = [0] * len(rows[0])
    for most, i in sorted({(most, i) for row in words for i, most in enumerate(row)}):
        if sum(widths) - widths[i] + most <= room:
            widths[i] = most
    for i, least in enumerate(widths):
        most = max((places(row[i]) for row, wide in zip(rows, words, strict=True) if wide[i] <= least), default=0)
        widths[i] += max(0, min(most - least, room - sum(widths)))
    return widths
