"""Save an unfinished pass through a model, layer by layer on a device, so that a killed run goes on with it.

    NAME.pass            two places for arrays, which are written in turn
    NAME.pass.journal    one JSON line that says what is measured, then one for each time the arrays were written:
                         {"head": …, "at": first byte, "crc": crc32, "entries": [[name, type, shape], …]}

A line is written after its bytes are on the disk, and bytes are checked against their CRC; if the last ones are
incomplete, those before them are used. Both files are removed when all is measured.
"""

import json
import logging
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quants.errors import FileError

from ..io.atomic import explained, write_at
from ..io.unfinished import Unfinished, unfinished

log = logging.getLogger(__name__)
SUFFIX, KEY = ".pass", "pass"
TYPES = ("<f4", "<f8", "<i4", "<i8", "|b1", "|u1")  # of arrays that may be saved
ANEW = "delete it to start anew, or name another file"

Saved = tuple[dict[str, Any], dict[str, NDArray[Any]]]


@dataclass
class PassState:
    """A store for a pass (see `runtime.ahead.Store`)."""

    file: Unfinished
    lines: list[str] = field(default_factory=list)
    is_used: bool = False  # whether anything is saved that a run would lose
    _last: tuple[int, int] = (0, 0)  # first byte and bytes of the last save, which the next one keeps

    @property
    def name(self) -> str:
        return str(self.file.path)

    def save(self, head: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Save a pass. Raises FileError if the disk is full."""
        plain = {name: np.ascontiguousarray(array, array.dtype.newbyteorder("<")) for name, array in arrays.items()}
        size = sum(array.nbytes for array in plain.values())
        first, before = self._last
        at = position = 0 if first >= size else first + before
        crc = 0
        with explained(self.file.target, size):
            for array in plain.values():
                data = array.reshape(-1).view(np.uint8).data
                write_at(self.file.fd, data, position)
                position, crc = position + array.nbytes, zlib.crc32(data, crc)
            os.fsync(self.file.fd)
            entries = [[name, array.dtype.str, array.shape] for name, array in plain.items()]
            self.file.note({"head": dict(head), "at": at, "crc": crc, "entries": entries})
        self._last, self.is_used = (at, size), True

    def load(self) -> Saved | None:
        """Return what was saved last and is intact; None for nothing."""
        for line in reversed(self.lines):
            with suppress(ValueError, KeyError, TypeError, OverflowError):  # a line that was cut off
                saved = self._taken(json.loads(line))
                if saved is not None:
                    self.is_used = True
                    return saved
        if self.lines:
            log.warning("%s is incomplete: the pass starts anew", self.name)
        return None

    def _taken(self, line: Mapping[str, Any]) -> Saved | None:
        at, end, crc = int(line["at"]), os.fstat(self.file.fd).st_size, 0
        position, arrays = at, dict[str, NDArray[Any]]()
        for name, dtype, shape in line["entries"]:
            if dtype not in TYPES or min(at, *shape, 0) < 0:
                return None
            array: NDArray[Any] = np.empty(shape, dtype)
            data = array.reshape(-1).view(np.uint8).data
            if position + array.nbytes > end or not _read(self.file.fd, data, position):
                return None
            position, crc = position + array.nbytes, zlib.crc32(data, crc)
            arrays[str(name)] = array
        if crc != line["crc"]:
            return None
        self._last = at, position - at
        return dict(line["head"]), arrays


def _read(fd: int, data: memoryview, position: int) -> bool:
    """Fill the memory from a file; return whether there was enough."""
    done = 0
    while done < len(data):
        count = os.preadv(fd, [data[done : done + (1 << 30)]], position + done)
        if not count:
            return False
        done += count
    return True


@contextmanager
def pass_state(target: Path, head: Mapping[str, Any]) -> Iterator[PassState]:
    """Create the files that keep a pass for the output `target`, or take over those of an earlier run.

    head: what is measured: the model's files, texts, options. The files are removed when the block ends, and kept if it
    raises after something was saved. Raises FileError if another run uses them, if other files have these names, or if
    the earlier run measured something else.
    """
    head = json.loads(json.dumps({KEY: 1, **head}))
    with unfinished(target, SUFFIX, SUFFIX + ".journal", head, KEY, 0, overwrite=False) as file:
        if file.lines and json.loads(file.lines[0]) != head:
            raise FileError(f"{file.journal} keeps a pass of another measurement: {_difference(file, head)}", ANEW)
        sizes = [0]
        with suppress(OSError):
            sizes.append(file.path.lstat().st_size)
        file.open(*(sizes if file.lines else [0]))
        state = PassState(file, file.lines[1:])
        if not state.lines:
            with explained(target, 0):
                file.restart(head)
        try:
            yield state
        except BaseException:
            if not state.is_used and not state.lines:
                file.abandon()
            raise
        file.abandon()


def _difference(file: Unfinished, head: Mapping[str, Any]) -> str:
    earlier = json.loads(file.lines[0])
    names = [name for name in {**earlier, **head} if earlier.get(name) != head.get(name)]
    return f"{', '.join(names)} {'differs' if len(names) == 1 else 'differ'}"
