"""Tables as text: a row is one line, or is folded between words to a width; a word is never cut."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from itertools import zip_longest

GAP = "  "
WIDEST = 100  # what a column is padded to at most; a longer cell juts out of its row alone

_SINGLE = re.compile("[\x00-\u02ff\u2010-\u2027\u2190-\u21ff]*")  # letters that all take one place


def places(text: str) -> int:
    """How many places of a terminal a text takes: two for a wide letter, none for a mark on another."""
    if text.isascii() or _SINGLE.fullmatch(text):
        return len(text)
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return len(text) + wide - sum(map(bool, map(unicodedata.combining, text)))


def table(rows: Sequence[Sequence[str]], right: str = "", width: int | None = None) -> Iterator[str]:
    """The text of each row, columns under each other. right: an "r" for each column that is aligned right ("lrr").

    width: rows that are wider are folded, and consist of several lines.
    """
    columns = list(zip(*rows, strict=True))
    aligned = [align == "r" for align in right.ljust(len(columns), "l")]
    taken = [[places(cell) for cell in column] for column in columns]
    widths = [min(max(each), WIDEST) for each in taken]
    room = None if width is None else width - len(GAP) * (len(columns) - 1)
    if room is not None and sum(map(max, taken)) > room:
        widths = _fitting(columns, [max(each) for each in taken], aligned, room)
    padded = [
        [" " * (most - size) + cell if on_right else cell + " " * (most - size)
         for cell, size in zip(column, sizes, strict=True)]
        for column, sizes, most, on_right in zip(columns, taken, widths, aligned, strict=True)
    ]  # fmt: skip
    for row, cells, sizes in zip(rows, zip(*padded, strict=True), zip(*taken, strict=True), strict=True):
        if room is not None and any(size > most for size, most in zip(sizes, widths, strict=True)):
            yield "\n".join(_folded_row(row, widths, aligned))
        else:
            yield GAP.join(cells).rstrip(" ")


def _fitting(columns: Sequence[Sequence[str]], wanted: list[int], aligned: list[bool], room: int) -> list[int]:
    """Widths that need no more than `room`: of the longest words while there is room for them, then of whole cells."""
    words = [
        most if on_right else max(places(word) for cell in column for word in cell.split(" "))
        for column, most, on_right in zip(columns, wanted, aligned, strict=True)
    ]
    least = _shares(words, room)
    more = _shares([most - width for most, width in zip(wanted, least, strict=True)], room - sum(least))
    return [width + share for width, share in zip(least, more, strict=True)]


def _shares(wanted: list[int], room: int) -> list[int]:
    """`room` dealt out evenly, except that nobody gets more than it wants."""
    shares = [0] * len(wanted)
    waiting = len(wanted)
    for i in sorted(range(len(wanted)), key=wanted.__getitem__):
        shares[i] = min(wanted[i], max(room, 0) // waiting)
        room -= shares[i]
        waiting -= 1
    return shares


def _folded_row(row: Sequence[str], widths: Sequence[int], aligned: Sequence[bool]) -> Iterator[str]:
    """The lines of a row. Where a word is wider than its column, the columns after it begin on the next line."""
    folded = [fold(cell, width) for cell, width in zip(row, widths, strict=True)]
    start = 0
    for end in range(1, len(row) + 1):
        if end < len(row) and all(places(line) <= widths[end - 1] for line in folded[end - 1]):
            continue
        indent = "".join(" " * width + GAP for width in widths[:start])
        for line in zip_longest(*folded[start:end], fillvalue=""):
            cells = zip(line, widths[start:end], aligned[start:end], strict=True)
            yield (indent + GAP.join(pad(*cell) for cell in cells)).rstrip(" ")
        start = end


def pad(text: str, width: int, on_right: bool = False) -> str:
    """The text with spaces after it (`on_right`: before it) up to a width."""
    spaces = " " * (width - places(text))
    return spaces + text if on_right else text + spaces


def fold(text: str, width: int) -> list[str]:
    """A text in lines of at most `width`, broken at spaces; a longer word has a line of its own."""
    if places(text) <= width:
        return [text]
    lines: list[str] = []
    for word in text.split(" "):
        if lines and places(lines[-1]) + 1 + places(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def shorten(text: str, width: int) -> str:
    """A text cut in its middle, where names of files differ least, to a width of at least 1."""
    cut, start, end = text, len(text) // 2, (len(text) + 1) // 2
    while places(cut) > width:
        start, end = (start - 1, end) if start > len(text) - end else (start, end + 1)
        cut = f"{text[: max(start, 0)]}…{text[end:]}"
    return cut
