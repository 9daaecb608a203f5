"""Write GGUF files to stores: the header first, then rows, in parts; nothing is written to this disk."""

import hashlib
import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from operator import itemgetter
from pathlib import Path

from quants.errors import FileError, GgufToolsError

from ..atomic import NOTHING, InputFiles, check_target
from ..stores.parted_output import PartedOutput
from ..stores.path import StorePath
from ..stores.store import CompletedUpload, Upload, begin_upload, holds, remove_object, version_now
from .shards import is_first_of_set
from .writer import NOT_MEASURED, Figures, Layout, OpenGguf

log = logging.getLogger(__name__)


class StoredGguf(OpenGguf):
    """Write a GGUF file to a store. Rows may come in any order; those that come early are kept in memory."""

    def __init__(self, layout: Layout, target: Path, output: PartedOutput) -> None:
        super().__init__(-1, layout, target, output)
        self._parts = output

    def lay_out(self) -> None:
        """Write the header; bytes between tensors are zeros that nobody writes."""
        self._parts.write(memoryview(self._layout.header), 0)

    def covered(self, index: int, start: int, stop: int) -> Figures | None:
        """Return NOT_MEASURED if an earlier run sent these rows, else None."""
        begin, end = self._layout.row_offset(index, start), self._layout.row_offset(index, stop)
        if stop == self._layout.tensors[index].rows:
            end += self._layout.tensors[index].format.tail_bytes
        return NOT_MEASURED if begin < end and self._parts.has(begin, end) else None

    def check_complete(self) -> None:
        """Wait until all parts are sent. Raises FileError if something is missing."""
        self._parts.finish()


def gaps(layout: Layout) -> list[tuple[int, int]]:
    """Return the ranges of a file that belong to no tensor, ascending, after its header."""
    ranges, position = list[tuple[int, int]](), len(layout.header)
    for offset, tensor in sorted(zip(layout.offsets, layout.tensors, strict=True), key=itemgetter(0)):
        if tensor.nbytes:
            ranges.append((position, offset))
            position = offset + tensor.nbytes
    return [*ranges, (position, layout.total)]


@contextmanager
def create_stored(
    plans: Sequence[tuple[Path, Layout]],
    overwrite: bool = False,
    reads: InputFiles = NOTHING,
    made_from: Sequence[object] | None = None,
) -> Iterator[list[OpenGguf]]:
    """Write several GGUF files to a store; they get their names when all are complete, the first last.

    made_from: for each file, what decides its bytes; then an interrupted run keeps its parts, and the next one uses
    them. Without it nothing is left after an error. Raises an error at once if a file may not be written, FileError if
    a store fails.
    """
    uploads: list[Upload] = []
    outputs: list[OpenGguf] = []
    stack = ExitStack()
    try:
        for number, (path, layout) in enumerate(plans):
            made = None if made_from is None else made_from[number]
            uploads.append(_begin(path, layout.total, overwrite, reads, made))
            output = PartedOutput(uploads[-1], layout.total, gaps(layout))
            stack.callback(output.close)
            outputs.append(StoredGguf(layout, path, output))
            outputs[-1].lay_out()
        yield outputs
        for each in outputs:
            each.close()
            each.check_complete()
        commit(uploads)
    except BaseException as error:
        stack.close()
        is_fault = isinstance(error, GgufToolsError) and not isinstance(error.__cause__, OSError)
        for upload in uploads:
            upload.abandon(keep=not is_fault)  # another try with these sources would fail again
        raise
    stack.close()


def _begin(path: Path, total: int, overwrite: bool, reads: InputFiles, made_from: object) -> Upload:
    if not isinstance(path, StorePath):
        raise FileError(f"{path} is on this disk, other outputs are in a store", "name one folder for all")
    mark = _mark(made_from, total)
    if made_from is not None and holds(path, total, mark):
        reads.check_target(path)
        return CompletedUpload(path, total)
    return begin(path, total, overwrite, reads, mark if made_from is not None else None)


def _mark(made_from: object, total: int) -> str:
    return hashlib.sha256(json.dumps([made_from, total]).encode()).hexdigest()


def make_way(path: StorePath, total: int, made_from: object = None) -> None:
    """Remove the first shard of a set whose objects are about to be replaced, so that no mixture can be opened.

    made_from: as of `create_stored`; an object that an earlier run made of it stays. Raises FileError.
    """
    if made_from is None or not holds(path, total, _mark(made_from, total)):
        remove_object(path)


def begin(path: StorePath, total: int, overwrite: bool, reads: InputFiles, mark: str | None = None) -> Upload:
    """Begin to write an object.

    mark: see `store.begin_upload`. Raises OptionError, FileError if it may not be written.
    """
    check_target(path, reads, overwrite)
    current = version_now(path)
    return begin_upload(path, total, mark or "", current and current[1], mark is not None)


def commit(uploads: Sequence[Upload]) -> None:
    """Give all objects their names, the first last: without it, the others do not make a set.

    Older first shards are removed before, so that older and newer shards never make a set, even if this is killed.
    """
    done: list[Upload] = []
    try:
        for upload in uploads if len(uploads) > 1 else ():
            if is_first_of_set(upload.path):
                upload.make_way()
        for upload in reversed(uploads):
            upload.commit()
            done.append(upload)
            log.info("wrote %s", upload.path)
    except BaseException:
        for upload in done:
            upload.withdraw()
        raise
