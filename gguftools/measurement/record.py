"""What a run measured so far, in a file: one that is killed loses no more than the window it was at.

    one JSON line that says what is measured, then one for each window: [number, crc32 of its values, base64 of them]

A line is noted when its window is done. What follows the last whole line, of a write that was cut short, is cut off.
The file goes when all is measured.
"""

import base64
import json
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quants.errors import FileError

from ..files.atomic import Reads, check_target, claim, explained, remove_own, write_at
from ..writing.resume import fingerprint

KEY = "measured"
ANEW = "delete it to start anew, or name another file"

Doubles = NDArray[np.float64]


class Record:
    """Values of windows, float64 (predictions, columns), by number. fd: the open file, locked. sizes: predictions."""

    def __init__(self, fd: int, path: Path, sizes: Sequence[int], columns: int) -> None:
        self._fd, self._path, self._sizes, self._columns = fd, path, sizes, columns
        self._values: dict[int, Doubles] = {}
        self._end = self._read()

    @property
    def done(self) -> int:
        """How many windows earlier runs measured."""
        return len(self._values)

    def earlier(self, window: int) -> Doubles | None:
        """What an earlier run noted of a window."""
        return self._values.get(window)

    def note(self, window: int, values: Doubles) -> None:
        """Add a window. Raises FileError where the disk is full."""
        raw = np.ascontiguousarray(values, "<f8").tobytes()
        line = json.dumps([window, zlib.crc32(raw), base64.b64encode(raw).decode()]).encode() + b"\n"
        with explained(self._path, self._end + len(line)):
            write_at(self._fd, memoryview(line), self._end)
        self._end += len(line)

    def _read(self) -> int:
        """Take in all whole lines, cut off what follows them, and say where they end."""
        with os.fdopen(os.dup(self._fd), "rb") as file:
            file.seek(0)
            end = len(file.readline())
            for line in file:
                entry = self._entry(line)
                if entry is None:
                    break
                self._values[entry[0]] = entry[1]
                end += len(line)
        os.ftruncate(self._fd, end)
        return end

    def _entry(self, line: bytes) -> tuple[int, Doubles] | None:
        try:
            window, crc, text = json.loads(line)
            raw = base64.b64decode(text, validate=True)
            size = self._sizes[window]
        except (ValueError, TypeError, IndexError):
            return None
        if not line.endswith(b"\n") or window < 0 or zlib.crc32(raw) != crc or len(raw) != 8 * size * self._columns:
            return None
        return window, np.frombuffer(raw, "<f8").reshape(size, self._columns).astype(np.float64)


@contextmanager
def recorded(
    path: Path, plan: dict[str, Any], files: Sequence[Path], sizes: Sequence[int], columns: int, reads: Reads
) -> Iterator[Record]:
    """Go on with a record, or begin one; it is removed when the block ends, and stays if that raises.

    plan: what is measured, in words and digests. files: that must be as they were. sizes: predictions of each window.
    Raises FileError for a record of another plan or of files that were changed, for one that another run is writing,
    and for a file that is none; OptionError where `path` is read.
    """
    check_target(path, reads, overwrite=True)
    plan = json.loads(json.dumps(plan))
    head = {KEY: 1, "plan": plan, "files": fingerprint(files), "columns": columns}
    with explained(path, 0):
        fd, lines = claim(path, head, KEY, path)
    try:
        if lines and (found := json.loads(lines[0])) != head:
            raise FileError(f"{path} is the record of another measurement: {_difference(found, head)}", ANEW)
        yield Record(fd, path, sizes, columns)
        remove_own(fd, path)
    finally:
        os.close(fd)


def _difference(found: dict[str, Any], head: dict[str, Any]) -> str:
    """What is not as it was, in words."""
    if found.get("files") != head["files"]:
        before = {name: numbers for name, *numbers in found.get("files") or ()}
        for name, *numbers in head["files"]:
            if before.get(name) != numbers:
                return f"{name} was changed since" if name in before else f"{name} was not measured there"
        return "it has more files"
    before, now = found.get("plan") or {}, head["plan"]
    for name, value in now.items():
        if before.get(name) != value:
            return f"{name} is another" if len(str(value)) > 40 else f"{name} was {before.get(name)}, it is {value} now"
    return "it was begun by another version"
