"""Compute SHA-256 of ranges of files, several at once."""

import hashlib
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import wait
from pathlib import Path
from typing import NamedTuple

from quants.arguments import thread_count
from quants.errors import FileError
from quants.threads import started_pool

from ..io.positioned import PositionedInput, ReadBytes
from ..io.stores.path import StorePath
from ..writing.row_blocks import Progress

STEP = 1 << 22  # bytes read at a time
BETWEEN = 0.1  # seconds from one report to the next


class ByteRange(NamedTuple):
    """Describe bytes begin … end of a file; name: for progress."""

    path: Path
    begin: int
    end: int
    name: str


def range_digests(
    ranges: Sequence[ByteRange], threads: int | None = None, progress: Progress | None = None
) -> list[str]:
    """Return each range's SHA-256 in hex. progress(bytes done, of how many, name). Raises FileError."""
    files: Mapping[Path, ReadBytes] = {path: reading(path) for path in {each.path for each in ranges}}
    total, done, stop = sum(each.end - each.begin for each in ranges), [0] * len(ranges), threading.Event()

    def digest(index: int) -> str:
        each, sha256 = ranges[index], hashlib.sha256()
        for position in range(each.begin, each.end, STEP):
            if stop.is_set():
                break
            try:
                data = files[each.path](position, min(each.end, position + STEP))
            except OSError as error:
                raise FileError(f"{each.path} cannot be read: {error.strerror or error}") from error
            sha256.update(data.data)
            done[index] += len(data)
        return sha256.hexdigest()

    order = sorted(range(len(ranges)), key=lambda i: ranges[i].begin - ranges[i].end)  # what takes longest first
    with started_pool(thread_count(threads)) as pool:
        futures = {i: pool.submit(digest, i) for i in order}
        try:
            left = set(futures.values())
            while left:
                ended, left = wait(left, BETWEEN)
                for future in ended:
                    future.result()
                if progress is not None and ranges:
                    now = next((i for i in order if done[i] < ranges[i].end - ranges[i].begin), order[-1])
                    progress(sum(done), total, ranges[now].name)
        except BaseException:
            stop.set()
            for future in futures.values():
                future.cancel()
            raise
    return [futures[i].result() for i in range(len(ranges))]


def file_digest(path: Path, threads: int | None = None, progress: Progress | None = None) -> str:
    """Return a file's SHA-256 in hex. Raises FileError."""
    return range_digests([ByteRange(path, 0, size_of(path), path.name)], threads, progress)[0]


def reading(path: Path) -> ReadBytes:
    """Return the function that reads bytes begin … end of a file, or of an object in a store. Raises FileError."""
    if isinstance(path, StorePath):
        from ..io.stores.store import open_object

        return open_object(path).fetch
    return PositionedInput(path).read


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of an object in a store. Raises FileError."""
    if isinstance(path, StorePath):
        from ..io.stores.store import version_now

        current = version_now(path)
        if current is None:
            raise FileError(f"there is no {path}")
        return current[0]
    try:
        return path.stat().st_size
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror or error}") from error
