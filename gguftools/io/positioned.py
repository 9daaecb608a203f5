"""Read and write bytes of large files by position, from any thread.

What is read once from start to end is read by calls, not through a map. A failing disk under a map, or a file that is
cut short, kills the process, where a call returns an error. Pages read through a map count as the process's memory. And
a call copies faster than pages are mapped one by one.
"""

import errno
import math
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quants import Format
from quants.errors import FileError
from quants.tensor import ReadRows

from .atomic import write_at

STORE_BYTES = 64 << 20  # written between two requests to flush
COPY_STEP = 1 << 28
CLONE_BLOCK = 1 << 12  # ranges that begin at multiples of this can share blocks on disk
CANNOT_COPY_INSIDE = {errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF}

Move = tuple[int, int, int]  # from, to, bytes
CopyProgress = Callable[[int, int], None]
ReadBytes = Callable[[int, int], NDArray[np.uint8]]


class PositionedInput:
    """Open a file that any thread reads, until it is garbage collected; keep_open=False opens it for each read."""

    def __init__(self, path: Path, keep_open: bool = True) -> None:
        self.path = path
        self._fd = self._open() if keep_open else None
        if self._fd is not None:
            weakref.finalize(self, os.close, self._fd)

    def _open(self) -> int:
        try:
            return os.open(self.path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        except OSError as error:
            raise FileError(f"{self.path} cannot be read: {error.strerror or error}") from error

    def read(self, begin: int, end: int) -> NDArray[np.uint8]:
        """Return bytes begin … end, uint8. Raises OSError, and FileError if the file ends before."""
        buffer = np.empty(end - begin, np.uint8)
        data, position = buffer.data, begin
        fd = self._open() if self._fd is None else self._fd
        try:
            while data:
                count = os.preadv(fd, [data], position)
                if not count:
                    raise FileError(f"{self.path} ends at byte {position}: it was cut short while it was read")
                data, position = data[count:], position + count
        finally:
            if self._fd is None:
                os.close(fd)
        return buffer


def row_reader(
    read: ReadBytes, begin: int, shape: tuple[int, ...], form: Format, byte_order: str = "little"
) -> ReadRows:
    """Return `Tensor.read` for rows stored from byte `begin` on; it returns them in little endian.

    read(begin, end): bytes of the file; if it gives views, rows are views.
    """
    return partial(_read_rows, read, begin, shape, form, byte_order)  # made for a hundred thousand tensors at once


def _read_rows(
    read: ReadBytes, begin: int, shape: tuple[int, ...], form: Format, byte_order: str, start: int, stop: int
) -> NDArray[np.uint8]:
    rows, row_bytes = math.prod(shape[:-1]), form.row_bytes(shape[-1] if shape else 1)
    start, stop, _ = slice(start, stop).indices(rows)  # never bytes of the next tensor
    stop = max(start, stop)
    raw = read(begin + start * row_bytes, begin + stop * row_bytes).reshape(stop - start, row_bytes)
    return raw if byte_order == "little" else form.swap_byte_order(raw)


class PositionedOutput:
    """Write into an open file. Bytes are sent to the disk early, so that `fsync` has little to wait for."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        # A file system lets one write into a file at a time; threads that wait for it in the kernel burn their cores.
        self._one_writer = threading.Lock()
        self._pending = 0
        self._begin, self._end = 0, 0  # range written since the last request

    def write(self, data: memoryview, offset: int) -> None:
        """Write bytes at `offset`. Raises OSError."""
        with self._one_writer:
            write_at(self._fd, data, offset)
            end = offset + len(data)
            self._begin, self._end = (min(self._begin, offset), max(self._end, end)) if self._pending else (offset, end)
            self._pending += len(data)
            if self._pending < STORE_BYTES:
                return
            begin, end, self._pending = self._begin, self._end, 0
        if hasattr(os, "posix_fadvise"):  # starts to write dirty pages; drops only stored ones
            os.posix_fadvise(self._fd, begin, end - begin, os.POSIX_FADV_DONTNEED)


def copy_ranges(source: Path, target: int, moves: Sequence[Move], progress: CopyProgress | None = None) -> None:
    """Copy ranges of a file into an open one; call progress(done, total) in bytes.

    Raises OSError; FileError on opening.
    """
    try:
        fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise FileError(f"{source} cannot be read: {error.strerror}") from error
    total, done = sum(size for _, _, size in moves), 0
    try:
        for begin, to, size in moves:
            left = size
            while left:
                moved = _copy_some(fd, target, begin, to, min(left, -begin % CLONE_BLOCK or COPY_STEP))
                begin, to, left, done = begin + moved, to + moved, left - moved, done + moved
                if progress is not None:
                    progress(done, total)
    finally:
        os.close(fd)


def _copy_some(source: int, target: int, begin: int, to: int, size: int) -> int:
    """Copy up to `size` bytes, inside the kernel or by sharing blocks if possible."""
    if hasattr(os, "copy_file_range"):
        try:
            moved = os.copy_file_range(source, target, size, begin, to)
            if moved:
                return moved
        except OSError as error:
            if error.errno not in CANNOT_COPY_INSIDE:
                raise
    data = os.pread(source, min(size, 1 << 23), begin)
    if not data:
        raise OSError(errno.EIO, "the source ends before its data does")
    write_at(target, memoryview(data), to)
    return len(data)
