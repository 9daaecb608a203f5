"""What a run measured so far, in a file: one that is killed loses no more than the window it was at.

    one JSON line that says what is measured, then one for each window: [number, crc32 of its values, base64 of them]

A line is noted when its window is done. What follows the last whole line, of a write that was cut short, is cut off.
Where a file is written beside it, its state (`files.locks`) is noted when it is whole and about to get its name. The
record goes when all is measured.
"""

import base64
import json
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quants.arguments import PathLike, as_path
from quants.errors import FileError, OptionError

from ..io.atomic import InputFiles, check_target, explained, remove_own, write_at
from ..io.locks import State, lock, open_to_lock, state_of
from ..io.unfinished import claim, is_list
from ..writing.resume import fingerprint

KEY, OUTPUT = "measured", "output"
ANEW = "delete it to start anew, or name another file"

Doubles = NDArray[np.float64]


class ProgressRecord:
    """Values of windows, float64 (predictions, columns), by number. fd: the open file, locked. sizes: predictions."""

    def __init__(self, fd: int, path: Path, sizes: Sequence[int], columns: int) -> None:
        self._fd, self._path, self._sizes, self._columns = fd, path, sizes, columns
        self._values: dict[int, Doubles] = {}
        self._output: State | None = None
        self._noted = False
        self._end = self._read()

    @property
    def is_empty(self) -> bool:
        """Return whether nothing is noted in it that would be missed."""
        return not self._values and not self._noted

    def earlier(self, window: int) -> Doubles | None:
        """What an earlier run noted of a window."""
        return self._values.get(window)

    def note(self, window: int, values: Doubles) -> None:
        """Add a window. Raises FileError where the disk is full."""
        raw = np.ascontiguousarray(values, "<f8").tobytes()
        self._noted = True
        self._add([window, zlib.crc32(raw), base64.b64encode(raw).decode()])

    def note_output(self, state: State) -> None:
        """Add what the file that is written beside the record is, now that it is whole."""
        self._add({OUTPUT: state})

    def is_output(self, path: Path) -> bool:
        """Return whether an earlier run wrote this file to its end, and gave it its name."""
        return self._output is not None and state_of(path) == self._output

    def _add(self, entry: Any) -> None:
        line = json.dumps(entry).encode() + b"\n"
        with explained(self._path, self._end + len(line)):
            write_at(self._fd, memoryview(line), self._end)
        self._end += len(line)

    def _read(self) -> int:
        """Take in all whole lines, cut off what follows them, and say where they end."""
        with os.fdopen(os.dup(self._fd), "rb") as file:
            file.seek(0)
            end = len(file.readline())
            for line in file:
                if not self._take(line):
                    break
                end += len(line)
        os.ftruncate(self._fd, end)
        return end

    def _take(self, line: bytes) -> bool:
        """Return whether a line is whole, and says what one of ours would."""
        if not line.endswith(b"\n"):
            return False
        try:
            entry = json.loads(line)
            if isinstance(entry, dict):
                device, inode, size, time = map(int, entry[OUTPUT])
                self._output = device, inode, size, time
                return True
            window, crc, text = entry
            raw = base64.b64decode(text, validate=True)
            count = self._sizes[window]
        except (ValueError, TypeError, LookupError):
            return False
        if window < 0 or zlib.crc32(raw) != crc or len(raw) != 8 * count * self._columns:
            return False
        self._values[window] = np.frombuffer(raw, "<f8").reshape(count, self._columns).astype(np.float64)
        return True


@contextmanager
def progress_record(
    path: Path,
    plan: dict[str, Any],
    files: Sequence[Path],
    sizes: Sequence[int],
    columns: int,
    reads: InputFiles,
    keep: bool = False,
) -> Iterator[ProgressRecord]:
    """Go on with a record, or begin one; it is removed when the block ends, and stays if that raises.

    plan: what is measured, in words and digests. files: that must be as they were. sizes: predictions of each window.
    keep: leave it, for who has yet to write what was found, and then calls `remove_record`.
    Raises FileError for a record of another plan or of files that were changed, for one that another run is writing,
    and for a file that is none; OptionError where `path` is read.
    """
    check_target(path, replace(reads, option="--record"), overwrite=True)
    plan = json.loads(json.dumps(plan))
    head = {KEY: 1, "plan": plan, "files": fingerprint(files), "columns": columns}
    with explained(path, 0):
        fd, lines = claim(path, head, KEY, path)
    try:
        if lines and (earlier := json.loads(lines[0])) != head:
            raise FileError(f"{path} is the record of another measurement: {_difference(earlier, head)}", ANEW)
        record = ProgressRecord(fd, path, sizes, columns)
        try:
            yield record
        except BaseException:
            keep = not record.is_empty
            raise
        finally:
            if not keep:
                remove_own(fd, path)
    finally:
        os.close(fd)


def remove_record(path: PathLike | None) -> None:
    """Remove a record, if there is one: what was found is written."""
    target = None if path is None else as_path(path, "the record")
    if target is None or not is_list(target, KEY):
        return
    fd = open_to_lock(target)
    try:
        if lock(fd):  # else another run has just begun with it
            remove_own(fd, target)
    finally:
        os.close(fd)


def check_apart(*outputs: PathLike | None) -> None:
    """Raise OptionError where two of what is written, a record too, have one path."""
    paths = [Path(output).absolute() for output in outputs if output is not None]
    for path in paths:
        if paths.count(path) > 1:
            raise OptionError(f"{path} cannot be two outputs at once", "name another file for one of them")


def _difference(earlier: dict[str, Any], head: dict[str, Any]) -> str:
    """What is not as it was, in words."""
    if earlier.get("files") != head["files"]:
        before = {name: numbers for name, *numbers in earlier.get("files") or ()}
        for name, *numbers in head["files"]:
            if before.get(name) != numbers:
                return f"{name} was changed since" if name in before else f"{name} was not measured there"
        same = sorted(map(str, earlier["files"])) == sorted(map(str, head["files"]))
        return "its files are in another order" if same else "it has more files"
    before, now = earlier.get("plan") or {}, head["plan"]
    for name, value in now.items():
        if before.get(name) != value:
            long = max(len(str(value)), len(str(before.get(name)))) > 40
            return f"{name} is another" if long else f"{name} was {before.get(name)}, it is {value} now"
    return "it was begun by another version"
