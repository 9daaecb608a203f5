"""Write files that consist of new bytes and of ranges of other files: locally, or to a store.

Between local files, the system copies ranges. Between objects of one store that can copy ranges (S3), only new bytes
are sent, and those that `stores.pieces` adds to them. From a store to a disk, ranges are read. To a store that cannot
copy ranges, everything is sent.
"""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from quants.errors import FileError
from quants.threads import started_pool

from ..atomic import NOTHING, InputFiles, PendingFile, explained, new_file, publish, write_at
from ..positioned import CopyProgress, Move, copy_ranges
from ..stores.path import StorePath
from ..stores.pieces import STEP, ByteSource, Piece, Traffic, at_hand, compose, plan_parts, traffic_of, zeros
from ..stores.store import Upload, begin_upload, copies_between, sent_part_bytes
from . import uploads

log = logging.getLogger(__name__)
CONNECTIONS = 8
WORTH_A_WARNING = 64 << 20  # bytes that are sent although the store has them

Progress = Callable[[int, int, str], None]
Read = Callable[[int, int], bytes]


class Copy(NamedTuple):
    """Describe a file to be: its header, its size, and the ranges that are copied into it.

    All other bytes are zeros.
    """

    path: Path
    header: bytes
    total: int
    sources: Sequence[tuple[ByteSource, Sequence[Move]]]

    def pieces(self) -> list[Piece]:
        """Return the file as consecutive pieces."""
        pieces, at = [at_hand(self.header)], len(self.header)
        moves = [(to, original, begin, size) for original, each in self.sources for begin, to, size in each]
        for to, original, begin, size in sorted(moves, key=itemgetter(0)):
            pieces += [zeros(to - at), Piece(original, begin, size)]
            at = to + size
        return [*pieces, zeros(self.total - at)]


def write_copies(
    copies: Sequence[Copy],
    overwrite: bool = False,
    reads: InputFiles = NOTHING,
    progress: Progress | None = None,
    *,
    mode: int | None = None,
    locked: int | None = None,
    replaced: str | None = None,
    check: Callable[[int, Read], None] | None = None,
) -> Traffic | None:
    """Write files, which appear when all are complete, the first last.

    progress(bytes copied, of how many, file). mode: permissions of new local files. locked: descriptor of the target,
    if the caller has it open and locked. replaced: version of the object that a single copy replaces. check(number,
    read): is called with each local file before it gets its name. Returns the traffic in stores, or None. Raises
    FileError, OptionError if a file may not be written; FileError if a source changed meanwhile.
    """
    if any(isinstance(each.path, StorePath) for each in copies):
        return _to_store(copies, overwrite, reads, progress, replaced)
    total, done = sum(_copied_bytes(each) for each in copies), 0
    with ExitStack() as stack:
        files: list[PendingFile] = []
        for each in copies:
            opening = new_file(each.path, each.total, reads=reads, overwrite=overwrite, locked=locked)
            files.append(stack.enter_context(opening))
        for number, (file, each) in enumerate(zip(files, copies, strict=True)):
            with explained(each.path, each.total):
                if mode is not None and file.replaced is None:
                    os.fchmod(file.fd, mode)
                os.ftruncate(file.fd, each.total)
                write_at(file.fd, memoryview(each.header), 0)
                for original, moves in each.sources:
                    _fill(file.fd, original, moves, progress_of(progress, done, total, each.path.name))
                    done += sum(size for _, _, size in moves)
            if check is not None:
                check(number, partial(_pread, file.fd))
        with explained(copies[0].path, sum(each.total for each in copies)):
            publish(*files)
    read = _fetched(copies)
    return Traffic(read) if read else None


def planned_traffic(copies: Sequence[Copy]) -> Traffic | None:
    """Return the traffic that `write_copies` will cause; None if all files are local. Raises FileError."""
    traffic, is_anywhere = Traffic(), False
    for each in copies:
        if isinstance(each.path, StorePath):
            is_anywhere = True
            size = sent_part_bytes(each.path, each.total)
            traffic += traffic_of(plan_parts(each.pieces(), partial(_can_copy, each.path), size))
        elif size := _stored_bytes(each):
            is_anywhere = True
            traffic += Traffic(size)
    return traffic + Traffic(_fetched(copies)) if is_anywhere else None


def warning_of(copies: Sequence[Copy], traffic: Traffic | None) -> str | None:
    """Return a warning if many bytes are sent that the store has already, else None."""
    stored = sum(map(_stored_bytes, copies))
    target = next((each.path for each in copies if isinstance(each.path, StorePath)), None)
    if traffic is None or target is None or traffic.copied or stored < WORTH_A_WARNING:
        return None
    return f"{target.scheme}:// copies no ranges of these by itself: {stored:,} bytes are read and sent again"


def _can_copy(target: StorePath, original: ByteSource) -> bool:
    return bool(original.version) and copies_between(original.path, target)


def _fetched(copies: Sequence[Copy]) -> int:
    """Count the bytes read from objects so far, headers and checked bytes included."""
    originals = {id(original): original for each in copies for original, _ in each.sources}
    return sum(original.fetched for original in originals.values() if original.is_stored)


def _copied_bytes(copy: Copy) -> int:
    return sum(size for _, moves in copy.sources for _, _, size in moves)


def _stored_bytes(copy: Copy) -> int:
    return sum(size for original, moves in copy.sources if original.is_stored for _, _, size in moves)


def progress_of(progress: Progress | None, done: int, total: int, label: str) -> CopyProgress | None:
    """Return the progress callback of one copy as a part of all."""
    return None if progress is None else lambda now, _: progress(done + now, total, label)


def _pread(fd: int, begin: int, end: int) -> bytes:
    return os.pread(fd, end - begin, begin)


def _fill(fd: int, original: ByteSource, moves: Sequence[Move], progress: Callable[[int, int], None] | None) -> None:
    """Copy ranges into an open file; objects are read over several connections."""
    if original.is_file:
        copy_ranges(original.path, fd, moves, progress)
        return
    total, done = sum(size for _, _, size in moves), 0

    def fetched(step: tuple[int, int, int]) -> int:
        begin, to, size = step
        write_at(fd, original.read(begin, begin + size).data, to)
        return size

    with started_pool(CONNECTIONS if original.is_stored else 1) as pool:
        try:
            for size in pool.map(fetched, list(_steps(moves))):
                done += size
                if progress:
                    progress(done, total)
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _steps(moves: Sequence[Move]) -> Iterator[Move]:
    for begin, to, size in moves:
        for at in range(0, size, STEP):
            yield begin + at, to + at, min(STEP, size - at)


def _to_store(
    copies: Sequence[Copy], overwrite: bool, reads: InputFiles, progress: Progress | None, replaced: str | None
) -> Traffic:
    traffic, total, done = Traffic(), sum(each.total for each in copies), 0
    begun: list[Upload] = []
    try:
        for each in copies:
            begun.append(_begin(each, overwrite, reads, replaced))
        for each, upload in zip(copies, begun, strict=True):
            pieces, can_copy = each.pieces(), partial(_can_copy, upload.path)
            traffic += compose(upload, pieces, can_copy, progress_of(progress, done, total, each.path.name))
            done += each.total
        reads.check_unchanged()
        uploads.commit(begun)
    except BaseException:
        for upload in begun:
            upload.abandon(keep=False)
        raise
    return replace(traffic, read=_fetched(copies))


def _begin(copy: Copy, overwrite: bool, reads: InputFiles, replaced: str | None) -> Upload:
    if not isinstance(copy.path, StorePath):
        raise FileError(f"{copy.path} is on this disk, other outputs are in a store", "name one folder for all")
    if replaced is not None:
        return begin_upload(copy.path, copy.total, "", replaced, False)
    return uploads.begin(copy.path, copy.total, overwrite, reads)
