"""Files made of ranges of others, and of bytes that are new: on this disk, or in a store, which copies what it can.

Where files are on this disk, its system copies ranges. Between objects of one store that can copy ranges (S3), nothing
but what is new travels, and what `stores.pieces` says has to go with it. From a store to a disk, ranges are read; to a
store that cannot copy them, everything is sent.
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

from ..atomic import NOTHING, InputFiles, Unnamed, explained, new_file, publish, write_at
from ..positioned import Move, copy_ranges
from ..stores.path import StorePath
from ..stores.pieces import STEP, Original, Piece, Traffic, at_hand, compose, plan_parts, traffic_of, zeros
from ..stores.store import Upload, begin_upload, copies_between, sent_part_bytes
from . import uploads

log = logging.getLogger(__name__)
CONNECTIONS = 8
WORTH_A_WARNING = 64 << 20  # bytes that travel though nothing about them is new

Progress = Callable[[int, int, str], None]
Read = Callable[[int, int], bytes]


class Copy(NamedTuple):
    """A file that is to be: what it begins with, its bytes in all, and what of which others is copied into it.

    What nobody copies is zeros.
    """

    path: Path
    header: bytes
    total: int
    sources: Sequence[tuple[Original, Sequence[Move]]]

    def pieces(self) -> list[Piece]:
        """The same as pieces of an object, one after the other."""
        found, at = [at_hand(self.header)], len(self.header)
        moves = [(to, original, begin, size) for original, each in self.sources for begin, to, size in each]
        for to, original, begin, size in sorted(moves, key=itemgetter(0)):
            found += [zeros(to - at), Piece(original, begin, size)]
            at = to + size
        return [*found, zeros(self.total - at)]


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
    """Write files, which appear when all are whole, the first last; returns what that, and reading, cost in stores.

    progress(bytes that are copied, of how many, file). mode: permissions of new files on this disk; locked: the target,
    where the caller has it open and locked. replaced: version of the object that the only one takes the place of.
    check(number, read): looks at a file before it gets its name, which is only done on this disk.
    Raises an error at once where a file may not be written, FileError where a source changed meanwhile.
    """
    if any(isinstance(each.path, StorePath) for each in copies):
        return _to_store(copies, overwrite, reads, progress, replaced)
    total, done = sum(_copied_bytes(each) for each in copies), 0
    with ExitStack() as stack:
        files: list[Unnamed] = []
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
                    _fill(file.fd, original, moves, _going_on(progress, done, total, each.path.name))
                    done += sum(size for _, _, size in moves)
            if check is not None:
                check(number, partial(_pread, file.fd))
        with explained(copies[0].path, sum(each.total for each in copies)):
            publish(*files)
    read = _fetched(copies)
    return Traffic(read) if read else None


def planned_traffic(copies: Sequence[Copy]) -> Traffic | None:
    """What `write_copies` will cost in a store, or stores; None where all is on this disk. Raises FileError."""
    found, is_anywhere = Traffic(), False
    for each in copies:
        if isinstance(each.path, StorePath):
            is_anywhere = True
            size = sent_part_bytes(each.path, each.total)
            found += traffic_of(plan_parts(each.pieces(), partial(_can_copy, each.path), size))
        elif size := _stored_bytes(each):
            is_anywhere = True
            found += Traffic(size)
    return found + Traffic(_fetched(copies)) if is_anywhere else None


def warning_of(copies: Sequence[Copy], traffic: Traffic | None) -> str | None:
    """What to say of it where much is sent that a store has already."""
    stored = sum(map(_stored_bytes, copies))
    target = next((each.path for each in copies if isinstance(each.path, StorePath)), None)
    if traffic is None or target is None or traffic.copied or stored < WORTH_A_WARNING:
        return None
    return f"{target.scheme}:// copies no ranges of these by itself: {stored:,} bytes are read and sent again"


def _can_copy(target: StorePath, original: Original) -> bool:
    return bool(original.version) and copies_between(original.path, target)


def _fetched(copies: Sequence[Copy]) -> int:
    """Bytes of objects that were read until now, headers and what was verified included."""
    originals = {id(original): original for each in copies for original, _ in each.sources}
    return sum(original.fetched for original in originals.values() if original.is_stored)


def _copied_bytes(copy: Copy) -> int:
    return sum(size for _, moves in copy.sources for _, _, size in moves)


def _stored_bytes(copy: Copy) -> int:
    return sum(size for original, moves in copy.sources if original.is_stored for _, _, size in moves)


def _going_on(progress: Progress | None, done: int, total: int, label: str) -> Callable[[int, int], None] | None:
    """Progress of one copy as a part of the whole."""
    return None if progress is None else lambda now, _: progress(done + now, total, label)


def _pread(fd: int, begin: int, end: int) -> bytes:
    return os.pread(fd, end - begin, begin)


def _fill(fd: int, original: Original, moves: Sequence[Move], progress: Callable[[int, int], None] | None) -> None:
    """Copy ranges into an open file, of an object by reading it over several connections."""
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
            told = _going_on(progress, done, total, each.path.name)
            pieces, can_copy = each.pieces(), partial(_can_copy, upload.path)
            traffic += compose(upload, pieces, can_copy, None if told is None else partial(_told, told))
            done += each.total
        reads.check_unchanged()
        uploads.commit(begun)
    except BaseException:
        for upload in begun:
            upload.abandon(keep=False)
        raise
    return replace(traffic, read=_fetched(copies))


def _told(progress: Callable[[int, int], None], done: int) -> None:
    progress(done, 0)


def _begin(copy: Copy, overwrite: bool, reads: InputFiles, replaced: str | None) -> Upload:
    if not isinstance(copy.path, StorePath):
        raise FileError(f"{copy.path} is on this disk, other outputs are in a store", "name one folder for all")
    if replaced is not None:
        return begin_upload(copy.path, copy.total, "", replaced, False)
    return uploads.begin(copy.path, copy.total, overwrite, reads)
