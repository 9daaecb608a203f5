"""Files that are written in several sittings: what is there already, and whether it is what was written.

    NAME.gguf.partial            the file, at its full size, with holes
    NAME.gguf.partial.journal    one JSON line that says what the file is made of and from, then one for every row range
                                 that was written: [tensor, first row, end row, crc32 of the bytes, error figures]

A range is noted only after its bytes were handed to the system, so a process can be killed at any moment; and every
range is read back and compared before it is believed, so a machine can lose power. The final name appears at the end.
"""

import json
import os
import threading
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quants.errors import FileError, GgufToolsError

from ..files.atomic import (
    NOTHING,
    Reads,
    Unnamed,
    check_space,
    check_target,
    claim,
    explain_write_error,
    explained,
    is_list,
    open_own,
    publish,
    remove_own,
    write_at,
)
from ..files.gguf.writer import NOT_MEASURED, Figures, Layout, OpenGguf
from ..files.locks import held, is_held

READ_BACK = 1 << 24  # bytes verified at a time


def fingerprint(paths: Sequence[Path], origin: Sequence[Sequence[str]] = ()) -> list[list[Any]]:
    """Name, size and time of change of each file: what must be the same when a run is taken up again.

    origin: what else decides the values, such as name and commit of a repository that is read over the network; the
    last entries.
    """
    found: list[list[Any]] = []
    for path in paths:
        info = path.stat()
        found.append([path.name, info.st_size, info.st_mtime_ns])
    return [*found, *map(list, origin)]


def partial_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.partial")


def journal_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.partial.journal")


def left_behind(targets: Iterable[Path], resume: bool) -> list[str]:
    """What to say of interrupted runs' unfinished files in the folders of `targets`, which are about to be written."""
    found, own = [], {journal_path(target) for target in targets}
    for journal in sorted({path for each in own for path in each.parent.glob("*.partial.journal")}):
        partial = journal.with_suffix("")
        if not partial.is_file() or is_held(journal) or not is_list(journal, "gguftools"):
            continue
        if journal not in own:
            found.append(f"{partial} is left of an interrupted run: finish that with --resume, or delete it")
        elif not resume:
            found.append(f"{partial} of an interrupted run is not used; --resume would have gone on from it")
    return found


class PartialGguf(OpenGguf):
    """A GGUF file that knows which rows it has already.

    fd, journal: the unfinished file and its journal, both open and this run's own.
    """

    def __init__(self, fd: int, layout: Layout, target: Path, journal: int) -> None:
        super().__init__(fd, layout, target)
        self._ranges: dict[tuple[int, int, int], Figures] = {}
        self._journal = journal
        self._lock = threading.Lock()

    def covered(self, index: int, start: int, stop: int) -> Figures | None:
        return self._ranges.get((index, start, stop))

    def write(self, index: int, first_row: int, raw: NDArray[np.uint8], figures: Figures = NOT_MEASURED) -> None:
        """Write rows, and note them."""
        raw = np.ascontiguousarray(raw)
        super().write(index, first_row, raw, figures)
        with explained(self._target, self._layout.total):
            self._note(index, first_row, first_row + len(raw), zlib.crc32(raw.reshape(-1).data), figures)

    def _note(self, index: int, start: int, stop: int, crc: int, figures: Figures) -> None:
        line = json.dumps([index, start, stop, crc, *figures]) + "\n"
        with self._lock:
            os.write(self._journal, line.encode())

    def start(self, contents: dict[str, Any]) -> None:
        """Start from nothing."""
        os.ftruncate(self._fd, 0)  # first: what the journal still lists is then found nowhere
        head = json.dumps(contents).encode() + b"\n"
        write_at(self._journal, memoryview(head), 0)
        os.ftruncate(self._journal, len(head))
        os.lseek(self._journal, 0, os.SEEK_END)
        os.ftruncate(self._fd, self._layout.total)
        write_at(self._fd, memoryview(self._layout.header), 0)

    def resume(self, lines: Sequence[Any]) -> None:
        """Go on from the row ranges that a journal lists, those that are on disk as they were written."""
        for index, start, stop, crc, *numbers in lines:
            if self._crc(index, start, stop) == crc:
                self._ranges[index, start, stop] = Figures(*numbers)
                self._written[index] += stop - start
        os.ftruncate(self._fd, self._layout.total)
        write_at(self._fd, memoryview(self._layout.header), 0)
        size = os.lseek(self._journal, 0, os.SEEK_END)
        if size and os.pread(self._journal, 1, size - 1) != b"\n":
            os.write(self._journal, b"\n")  # ends a line that was cut off

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
    target: Path, layout: Layout, plan: str, sources: list[list[Any]], resume: bool, overwrite: bool = False,
    reads: Reads = NOTHING,
) -> Iterator[PartialGguf]:  # fmt: skip
    """Create a GGUF file that a killed or interrupted run leaves behind half done, to be taken up by another.

    plan: a digest of everything but the source's values that decides the bytes. sources: `fingerprint` of the files.
    resume: go on from what an earlier run left; where there is nothing, start.
    Raises FileError where sources or plan are not those of the earlier run, another process writes this file, or a
    file that no run of ours left has the name of an unfinished one; and where `files.atomic.check_target` does.
    """
    check_target(target, reads, overwrite)
    partial, journal = partial_path(target), journal_path(target)
    contents = {"gguftools": 1, "plan": plan, "sources": sources, "bytes": layout.total}
    with ExitStack() as stack:
        reads.check_target(partial)
        reads.check_target(journal)
        replaced = stack.enter_context(held(target)) if overwrite and target.exists() else None
        with explained(target, layout.total):
            log, lines = claim(journal, contents, "gguftools", target)
        stack.callback(os.close, log)
        earlier = _earlier(lines, layout, contents, target) if resume and lines else None
        check_space(target, layout.total - stored_bytes(partial))
        try:
            with explained(target, layout.total):
                fd = open_own(partial, bool(lines), (0, _bytes(lines)))
        except FileError:
            if not lines:
                remove_own(log, journal)
            raise
        stack.callback(os.close, fd)
        output = PartialGguf(fd, layout, target, log)
        stack.callback(output.close)
        try:
            if earlier is None:
                output.start(contents)
            else:
                output.resume(earlier)
            yield output
            output.close()
            output.check_complete()
            publish(Unnamed(fd, partial, target, replaced))
            remove_own(log, journal)
        except OSError as error:
            raise explain_write_error(error, target, layout.total) from error
        except GgufToolsError as error:
            if not isinstance(error.__cause__, OSError):  # nothing that another try with this source could mend
                remove_own(fd, partial)
                remove_own(log, journal)
            raise


def _bytes(lines: Sequence[str]) -> Any:
    """The size of the file that a journal is of."""
    return json.loads(lines[0]).get("bytes") if lines else None


def stored_bytes(path: Path) -> int:
    """Bytes on disk of a file, which another run may just be giving its final name."""
    try:
        return path.stat().st_blocks * 512
    except OSError:
        return 0


def _earlier(lines: Sequence[str], layout: Layout, contents: dict[str, Any], target: Path) -> list[Any]:
    """The ranges an earlier run noted in its journal."""
    head = json.loads(lines[0])
    anew = "run it without --resume to start anew"
    if head.get("sources") != contents["sources"]:
        raise FileError(f"{_changed(head.get('sources'), contents['sources'])} since {target} was begun", hint=anew)
    if head != contents:
        raise FileError(f"{target} was begun with another recipe, other options or another matrix", hint=anew)
    return [entry for entry in map(_parsed, lines[1:]) if _is_range(entry, layout)]


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError:
        return None  # the line that was being written when the process died


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
