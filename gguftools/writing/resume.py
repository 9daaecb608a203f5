"""Write GGUF files that an interrupted run leaves for the next one, which checks and keeps the rows that are there.

NAME.gguf.partial            the file, at its full size, with holes
NAME.gguf.partial.journal    one JSON line about what the file is made of, then one for every row range that was
                             written: [tensor, first row, end row, crc32 of the bytes, error figures]

A range is noted only after its bytes were handed to the system, so a process can be killed at any moment. Every range
is read back and compared before it is used, so a machine can lose power. The final name appears at the end.
"""

import json
import os
import secrets
import threading
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quants.errors import FileError, GgufToolsError

from ..io.atomic import NOTHING, InputFiles, check_space, check_target, explained
from ..io.gguf.writer import NOT_MEASURED, Figures, Layout, OpenGguf
from ..io.locks import State, is_held, state_of
from ..io.shared_file import SharedFile
from ..io.stores.path import StorePath
from ..io.stores.store import can_resume
from ..io.unfinished import Unfinished, is_list, unfinished

PARTIAL, JOURNAL = ".partial", ".journal"
ENCODED, SEARCHED = ".encoded", ".search"  # suffixes of work before the output is begun
KEY = "gguftools"  # of the first line of a journal
ANEW = "run it without `resume` to start anew"
READ_BACK = 1 << 24  # bytes verified at a time


def fingerprint(paths: Sequence[Path], origin: Sequence[Sequence[str]] = ()) -> list[list[Any]]:
    """Return name, size and time of change of each file: these must be the same when a run is resumed.

    origin: what else decides the values, such as names and versions of objects in a store; appended.
    """
    infos = [(path.name, path.stat()) for path in paths if not isinstance(path, StorePath)]
    return [*([name, info.st_size, info.st_mtime_ns] for name, info in infos), *map(list, origin)]


def partial_path(path: Path) -> Path:
    return path.with_name(path.name + PARTIAL)


def journal_path(path: Path) -> Path:
    return path.with_name(path.name + PARTIAL + JOURNAL)


def unfinished_warnings(targets: Iterable[Path], resume: bool, uses: Sequence[str] = ()) -> list[str]:
    """Return warnings about unfinished files that interrupted runs left of `targets`.

    uses: ENCODED, SEARCHED, if this run goes on from them.
    """
    targets, warnings = [target for target in targets if not isinstance(target, StorePath)], []
    for suffix in (PARTIAL, ENCODED, SEARCHED):
        own = {target.with_name(target.name + suffix + JOURNAL) for target in targets}
        taken = own if suffix in (PARTIAL, *uses) else set()
        for journal in sorted(own):
            left = journal.with_suffix("")
            if not left.is_file() or is_held(journal) or not is_list(journal, KEY):
                continue
            if journal not in taken:
                warnings.append(f"{left} is left of an interrupted run: finish that with `resume`, or delete it")
            elif not resume:
                warnings.append(f"{left} of an interrupted run is not used; `resume` would have gone on from it")
    return warnings


def resume_warnings(targets: Iterable[Path], resume: bool) -> list[str]:
    """Return warnings if `resume` is set for a store that keeps no parts of interrupted uploads."""
    stores = {target.scheme for target in targets if isinstance(target, StorePath) and not can_resume(target)}
    return [f"{scheme}:// keeps nothing of what is not whole: `resume` begins anew" for scheme in stores if resume]


class PartialGguf(OpenGguf):
    """Write a GGUF file that knows which rows it has. file: the file and its journal, both open."""

    def __init__(self, layout: Layout, file: Unfinished) -> None:
        super().__init__(file.fd, layout, file.target)
        self._ranges: dict[tuple[int, int, int], Figures] = {}
        self._file = file
        self._lock = threading.Lock()

    @property
    def state(self) -> State:
        """Return the file's state, which stays the same under its final name."""
        return state_of(self._fd)

    def covered(self, index: int, start: int, stop: int) -> Figures | None:
        return self._ranges.get((index, start, stop))

    def write(
        self,
        index: int,
        first_row: int,
        raw: NDArray[np.uint8],
        figures: Figures = NOT_MEASURED,
        tail: NDArray[np.uint8] | None = None,
    ) -> None:
        """Write rows, and note them."""
        raw = np.ascontiguousarray(raw)
        super().write(index, first_row, raw, figures, tail)
        self._note(index, first_row, first_row + len(raw), zlib.crc32(raw.reshape(-1).data), figures)

    def note(self, index: int, start: int, stop: int, crc: int, figures: Figures) -> None:
        """Note rows that another process wrote into the file; crc: crc32 of their bytes."""
        self._note(index, start, stop, crc, figures)
        with self._state:
            self._written[index] += stop - start

    def _note(self, index: int, start: int, stop: int, crc: int, figures: Figures) -> None:
        with explained(self._target, self._layout.total), self._lock:
            self._file.note([index, start, stop, crc, *figures])

    def shared(self) -> SharedFile:
        """Return the file for other processes to write into, with a new mark in its journal."""
        mark = secrets.token_hex(16)
        with self._lock:
            position = os.lseek(self._file.log, 0, os.SEEK_END) + len('["workers", "')
            self._file.note(["workers", mark])
        return SharedFile(
            self._file.path.absolute(), self._file.journal.absolute(), position, mark.encode(), self._layout.total
        )

    def resume(self, lines: Sequence[Any]) -> None:
        """Take over the row ranges of a journal whose bytes are as they were written."""
        for index, start, stop, crc, *numbers in lines:
            if self._crc(index, start, stop) == crc:
                self._ranges[index, start, stop] = Figures(*numbers)
                self._written[index] += stop - start

    def _crc(self, index: int, start: int, stop: int) -> int:
        position, end = self._layout.row_offset(index, start), self._layout.row_offset(index, stop)
        crc = 0
        while position < end:
            data = os.pread(self._fd, min(READ_BACK, end - position), position)
            if not data:
                return -1
            crc = zlib.crc32(data, crc)
            position += len(data)
        return crc


@contextmanager
def resumable_gguf(
    target: Path,
    layout: Layout,
    plan: str,
    sources: list[list[Any]],
    resume: bool,
    overwrite: bool = False,
    reads: InputFiles = NOTHING,
    anew: str = ANEW,
) -> Iterator[PartialGguf]:
    """Create a GGUF file that an interrupted run leaves half done for another.

    plan: a digest of everything but the source's values that decides the bytes. sources: `fingerprint` of the files.
    resume: go on from what an earlier run left; without that, start. anew: as in `resumable`. Raises FileError if
    sources or plan differ from the earlier run's, if another process writes this file, if an unknown file has the name
    of the unfinished one, and as `io.atomic.check_target`.
    """
    head = {KEY: 1, "plan": plan, "sources": sources, "bytes": layout.total}
    with resumable(target, head, resume, overwrite, reads, anew) as (file, entries):
        output = PartialGguf(layout, file)
        try:
            output.resume([entry for entry in entries if _is_range(entry, layout)])
            output.lay_out()
            yield output
        finally:
            output.close()
        output.check_complete()


@contextmanager
def resumable(
    target: Path,
    head: dict[str, Any],
    resume: bool,
    overwrite: bool = False,
    reads: InputFiles = NOTHING,
    anew: str = ANEW,
) -> Iterator[tuple[Unfinished, list[Any]]]:
    """Create a file of head["bytes"] bytes that an interrupted run leaves for another, with a journal of what it did.

    Yields the open file and the earlier run's notes; the file gets its name when the block ends. head, resume: see
    `resumable_gguf`, which raises the same. anew: the hint if the earlier run was another one.
    """
    check_target(target, reads, overwrite)
    reads.check_target(partial_path(target))
    reads.check_target(journal_path(target))
    size = head["bytes"]
    check_space(target, size - stored_bytes(partial_path(target)))
    with unfinished(target, PARTIAL, PARTIAL + JOURNAL, head, KEY, size, overwrite) as file:
        entries = _earlier(file.lines, head, target, anew) if resume and file.lines else None
        file.open(0, json.loads(file.lines[0]).get("bytes") if file.lines else 0)
        try:
            with explained(target, size):
                if entries is None:
                    file.restart(head)
                yield file, entries or []
                file.publish()
        except GgufToolsError as error:
            if not isinstance(error.__cause__, OSError):  # another try with this source would fail again
                file.abandon()
            raise


def remove_partial(target: Path) -> None:
    """Remove what a run left that was killed after its file got its final name."""
    if not is_list(journal_path(target), KEY):
        return
    with unfinished(target, PARTIAL, PARTIAL + JOURNAL, {KEY: 1}, KEY, 0, overwrite=False) as file:
        file.open(0, json.loads(file.lines[0]).get("bytes") if file.lines else 0)
        file.abandon()


def stored_bytes(path: Path) -> int:
    """Return the bytes on disk of a file; 0 if there is none."""
    try:
        return path.stat().st_blocks * 512
    except OSError:
        return 0


def _earlier(lines: Sequence[str], contents: dict[str, Any], target: Path, anew: str) -> list[Any]:
    """Return the notes of an earlier run's journal. Raises FileError if that run was another one."""
    head = json.loads(lines[0])
    if head.get("sources") != contents["sources"]:
        raise FileError(f"{_changed(head.get('sources'), contents['sources'])} since {target} was begun", hint=anew)
    if head != contents:
        raise FileError(f"{target} was begun with another recipe, other options or another matrix", hint=anew)
    entries = []
    for line in lines[1:]:
        with suppress(json.JSONDecodeError):  # the line that was being written when the process died
            entries.append(json.loads(line))
    return entries


def _is_range(entry: Any, layout: Layout) -> bool:
    if not isinstance(entry, list) or len(entry) != 7 or not all(isinstance(n, int) for n in entry[:4]):
        return False
    index, start, stop = entry[:3]
    return 0 <= index < len(layout.tensors) and bool(0 <= start < stop <= layout.tensors[index].rows)


def _changed(before: Any, now: list[list[Any]]) -> str:
    old = {name: numbers for name, *numbers in before or ()}
    for name, *numbers in now:
        if old.get(name) != numbers:
            return f"{name} was changed" if name in old else f"{name} was not among the sources"
    return "the sources were changed"
