"""Base runs in llama.cpp's format (`runtime.evaluation.stored_logits`): read, and written so that a killed run can be
resumed.

    NAME.partial           the file, at its full size, with holes
    NAME.partial.journal   one JSON line that says what it is of, then one for each window: [number, crc32 of its rows]
"""

import hashlib
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from quants.errors import FileError
from runtime.arrays import Ids
from runtime.evaluation.divergence import Rows
from runtime.evaluation.stored_logits import MAGIC, StoredLayout, StoredLogits, encode_rows, stored_logits
from runtime.head import LazyLogits

from ...io.atomic import NOTHING, InputFiles, explained, write_at
from ...io.locks import State, state_of
from ...io.unfinished import Unfinished
from ...writing.resume import KEY, fingerprint, partial_path, resumable


def is_llama_cpp_base(path: Path) -> bool:
    """Return whether a file is such a base, by its content. Raises FileError if it cannot be read."""
    if path.is_dir() or not path.exists():
        return False
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror}") from error


def open_llama_cpp_base(path: Path) -> StoredLogits:
    """Read such a base. Raises FileError for a damaged one."""
    try:
        return stored_logits(np.memmap(path, np.uint8, "r"))
    except FileError as error:
        raise FileError(f"{path}: {error}", error.hint) from error
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror}") from error


class LlamaCppWriter:
    """Takes a base's logits: windows in any order, each from its first prediction on."""

    needs_rows = True

    def __init__(self, file: Unfinished, layout: StoredLayout, threads: int) -> None:
        self._file, self._layout, self._threads = file, layout, threads
        self._covered: set[int] = set()
        self._crc = 0

    @property
    def state(self) -> State:
        """Return the state of the file, which stays the same under its final name."""
        return state_of(self._file.fd)

    def covered(self, window: int) -> bool:
        """Return whether an earlier run wrote this window."""
        return window in self._covered

    def add(self, window: int, start: int, stop: int, given: Rows | LazyLogits) -> None:
        """Add predictions start … stop - 1 of a window, which is recorded once it is complete."""
        assert isinstance(given, Rows)  # as needs_rows says
        if self.covered(window):
            return
        data = encode_rows(given.logits, self._threads)
        with explained(self._file.target, self._layout.size):
            write_at(self._file.fd, memoryview(data), self._layout.offset(window, start))
            self._crc = zlib.crc32(data, self._crc if start else 0)
            if stop == self._layout.predictions:
                self._file.note([window, self._crc])

    def begin(self, tokens: Ids) -> None:
        """Write the header, and make room for all rows."""
        os.ftruncate(self._file.fd, self._layout.size)
        write_at(self._file.fd, memoryview(self._layout.header(tokens)), 0)

    def resume(self, entries: Sequence[Any]) -> None:
        """Mark the windows of a journal as covered whose bytes on disk are intact."""
        size = self._layout.row_bytes * self._layout.predictions
        for entry in entries:
            if not isinstance(entry, list) or len(entry) != 2 or not all(type(number) is int for number in entry):
                continue
            window, crc = entry
            if window not in range(self._layout.windows):
                continue
            if zlib.crc32(os.pread(self._file.fd, size, self._layout.offset(window, 0))) == crc:
                self._covered.add(window)


@dataclass(frozen=True)
class LlamaCppRun:
    """The run that such a base stores.

    tokens: of all windows, as the text has them. sources: input files that must be unchanged for a run to be resumed.
    """

    tokens: Ids
    layout: StoredLayout
    sources: Sequence[Path] = ()
    precision: str = "float32"
    threads: int = 1


@contextmanager
def saved_llama_cpp_base(
    target: Path, run: LlamaCppRun, *, resume: bool = False, overwrite: bool = False, reads: InputFiles = NOTHING
) -> Iterator[LlamaCppWriter]:
    """Write such a base, which appears when the block ends.

    resume: keep the windows in the TARGET.partial of a killed run. Raises FileError, OptionError as
    `writing.resume.resumable` does.
    """
    header = run.layout.header(run.tokens)
    plan = hashlib.sha256(header + run.precision.encode()).hexdigest()
    head = {KEY: 1, "plan": plan, "sources": fingerprint(run.sources), "bytes": run.layout.size}
    anew = f"delete {partial_path(target)} to start anew"
    with resumable(target, head, resume, overwrite, reads, anew) as (file, entries):
        writer = LlamaCppWriter(file, run.layout, run.threads)
        writer.resume(entries)
        writer.begin(run.tokens)
        yield writer
