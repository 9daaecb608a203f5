"""A progress record: figures of each window in a file, so that a killed run loses at most one window.

    one JSON line that says what is measured, then one for each window: [number, crc32 of its values, base64 of them]

A line is written when its window is done. Bytes after the last complete line, of an interrupted write, are cut off. If
a file is written next to the record, its state (`io.locks`) is recorded when it is complete and about to get its name.
The noise floor of a device has a line, too.
The record is removed when all is measured.
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

from quants.arguments import PathLike, as_path
from quants.errors import FileError, OptionError
from runtime.arrays import Doubles

from ..io.atomic import InputFiles, check_target, explained, remove_own, write_at
from ..io.locks import State, lock, open_to_lock, state_of
from ..io.unfinished import claim, is_list
from ..writing.resume import fingerprint

KEY, OUTPUT, NOISE = "measured", "output", "noise"
ANEW = "delete it to start anew, or name another file"


class ProgressRecord:
    """Values of windows, float64 (predictions, columns), by number.

    fd: the open, locked file. sizes: predictions of each window. noise: mean and maximum of the noise floor.
    """

    def __init__(self, fd: int, path: Path, sizes: Sequence[int], columns: int) -> None:
        self._fd, self._path, self._sizes, self._columns = fd, path, sizes, columns
        self._values: dict[int, Doubles] = {}
        self._output: State | None = None
        self.noise: tuple[float, float] | None = None
        self._noted = False
        self._end = self._read()

    @property
    def is_empty(self) -> bool:
        """Return whether nothing is recorded that a run would lose."""
        return not self._values and not self._noted

    def earlier(self, window: int) -> Doubles | None:
        """Return the values that an earlier run recorded for a window; None if it has none."""
        return self._values.get(window)

    def note(self, window: int, values: Doubles) -> None:
        """Add a window. Raises FileError if the disk is full."""
        raw = np.ascontiguousarray(values, "<f8").tobytes()
        self._noted = True
        self._add([window, zlib.crc32(raw), base64.b64encode(raw).decode()])

    def note_output(self, state: State) -> None:
        """Add the state of the completed file that is written next to the record."""
        self._add({OUTPUT: state})

    def note_noise(self, mean: float, largest: float) -> None:
        """Add the noise floor of the device."""
        self.noise = mean, largest
        self._add({NOISE: self.noise})

    def is_output(self, path: Path) -> bool:
        """Return whether an earlier run completed this file and gave it its name."""
        return self._output is not None and state_of(path) == self._output

    def _add(self, entry: Any) -> None:
        line = json.dumps(entry).encode() + b"\n"
        with explained(self._path, self._end + len(line)):
            write_at(self._fd, memoryview(line), self._end)
        self._end += len(line)

    def _read(self) -> int:
        """Load all complete lines, cut off the rest, and return where they end."""
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
        """Load a line; return whether it is complete and valid."""
        if not line.endswith(b"\n"):
            return False
        try:
            entry = json.loads(line)
            if isinstance(entry, dict) and NOISE in entry:
                mean, largest = map(float, entry[NOISE])
                self.noise = mean, largest
                return True
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
    """Resume a record, or create one; it is removed when the block ends, and kept if that raises.

    plan: what is measured, in words and digests. files: input files that must be unchanged. sizes: predictions of each
    window. keep: leave the record, for a caller that writes the report and then calls `remove_record`. Raises FileError
    for a record of another plan or of changed files, for one that another run is writing, and for a file that is no
    record; OptionError if `path` is an input.
    """
    check_target(path, replace(reads, parameter="record"), overwrite=True)
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
    """Remove a record, if it exists: the report is written."""
    target = None if path is None else as_path(path, "the record")
    if target is None or not is_list(target, KEY):
        return
    fd = open_to_lock(target)
    try:
        if lock(fd):  # else another run uses it
            remove_own(fd, target)
    finally:
        os.close(fd)


def check_apart(*outputs: PathLike | None) -> None:
    """Raise OptionError if two outputs have one path; a record is an output, too."""
    paths = [Path(output).absolute() for output in outputs if output is not None]
    for path in paths:
        if paths.count(path) > 1:
            raise OptionError(f"{path} cannot be two outputs at once", "name another file for one of them")


def _difference(earlier: dict[str, Any], head: dict[str, Any]) -> str:
    """Return in words how the earlier record's head differs."""
    if earlier.get("files") != head["files"]:
        before = {name: numbers for name, *numbers in earlier.get("files") or ()}
        for name, *numbers in head["files"]:
            if before.get(name) != numbers:
                return f"{name} was changed since" if name in before else f"{name} was not measured there"
        same = sorted(map(str, earlier["files"])) == sorted(map(str, head["files"]))
        return "its files are in another order" if same else "it has more files"
    before, now = earlier.get("plan") or {}, head["plan"]
    for name in {**now, **before}:
        value, earlier_value = now.get(name, "the processor"), before.get(name, "the processor")  # without a device
        if earlier_value != value:
            long = max(len(str(value)), len(str(earlier_value))) > 40
            return f"{name} is another" if long else f"{name} was {earlier_value}, it is {value} now"
    return "it was begun by another version"
