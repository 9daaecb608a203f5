"""Save the sums of an importance matrix while it is measured, so that a killed run can be resumed.

    NAME.partial            two places for the sums, float64, and counts, int64, which are written in turn
    NAME.partial.journal    one JSON line that says what they are measured on and of, then one for each time they were
                            written: {"windows": done, "at": first byte, "crc": crc32, "entries": [[name, experts,
                            width], …]}

A line is written after its bytes were handed to the system, and bytes are checked against their CRC; if the last ones
are incomplete, those before them are used.
"""

import json
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from quants.errors import FileError

from ..io.atomic import explained, write_at
from ..io.unfinished import Unfinished, unfinished
from ..writing.resume import JOURNAL, PARTIAL

if TYPE_CHECKING:
    from runtime.importance import Sums

Arrays = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]


@dataclass
class State:
    """The saved sums. windows, sums: of the earlier run: squares and inputs (experts, width) and counts (experts,)."""

    file: Unfinished
    windows: int = 0
    sums: dict[str, Arrays] = field(default_factory=dict)
    _last: tuple[int, int] = (0, 0)  # first byte and bytes of the last save, which the next one keeps

    def save(self, windows: int, sums: Mapping[str, "Sums"]) -> None:
        """Save the sums of so many windows."""
        data = b"".join(
            np.ascontiguousarray(array, dtype).tobytes()
            for each in sums.values()
            for array, dtype in ((each.squares, "<f8"), (each.inputs, "<f8"), (each.counts, "<i8"))
        )
        first, size = self._last
        at = 0 if first >= len(data) else first + size
        entries = [[name, *each.squares.shape] for name, each in sums.items()]
        with explained(self.file.target, len(data)):
            write_at(self.file.fd, memoryview(data), at)
            self.file.note({"windows": windows, "at": at, "crc": zlib.crc32(data), "entries": entries})
        self._last = at, len(data)

    def end(self) -> None:
        """Remove the files: the work is done, or cannot be done."""
        self.file.abandon()

    def restore(self, lines: Sequence[str]) -> None:
        """Load the sums of the last intact line."""
        for line in reversed(lines):
            with suppress(ValueError, KeyError, TypeError, OverflowError):  # a line that was cut off
                if self._take(json.loads(line)):
                    return

    def _take(self, line: Mapping[str, Any]) -> bool:
        shapes = [(str(name), int(experts), int(width)) for name, experts, width in line["entries"]]
        size = sum(8 * experts * (2 * width + 1) for _, experts, width in shapes)
        at, windows = int(line["at"]), int(line["windows"])
        if min(at, size, windows) < 0 or at + size > os.fstat(self.file.fd).st_size:
            return False
        data = os.pread(self.file.fd, size, at)
        if zlib.crc32(data) != line["crc"]:
            return False
        position = 0
        for name, experts, width in shapes:
            arrays = []
            for dtype, count in (("<f8", experts * width), ("<f8", experts * width), ("<i8", experts)):
                arrays.append(np.frombuffer(data, dtype, count, position).copy())
                position += 8 * count
            self.sums[name] = arrays[0].reshape(experts, width), arrays[1].reshape(experts, width), arrays[2]
        self.windows, self._last = windows, (at, size)
        return True


@contextmanager
def unfinished_sums(target: Path, head: Mapping[str, Any], resume: bool) -> Iterator[State]:
    """Create the files for the sums of the matrix `target`, or resume those of an earlier run.

    head: what they are measured on. Raises FileError if another run uses them, if other files have these names, or if
    the earlier run measured something else.
    """
    with unfinished(target, PARTIAL, PARTIAL + JOURNAL, head, "gguftools", 0, overwrite=False) as file:
        if resume and file.lines:
            _check_same(json.loads(file.lines[0]), head, target)
        sizes = [0]
        with suppress(OSError):
            sizes.append(file.path.lstat().st_size)
        file.open(*(sizes if file.lines else [0]))
        state = State(file)
        with explained(target, 0):
            if resume and file.lines:
                state.restore(file.lines[1:])
            else:
                file.restart(head)
        yield state


def _check_same(earlier: Mapping[str, Any], head: Mapping[str, Any], target: Path) -> None:
    reasons = {
        "importance matrix": "with other options, or as another file",
        "texts": "on other texts or windows",
        "sources": "with a model that was changed since",
    }
    for key, why in reasons.items():
        if earlier.get(key) != head[key]:
            raise FileError(f"{target} was begun {why}", hint="run it without `resume` to start anew")
