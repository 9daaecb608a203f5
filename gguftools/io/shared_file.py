"""Write one file from several processes, on machines that may or may not see it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from .atomic import explained, write_at


class SharedFile(NamedTuple):
    """Describe a file that several processes write. mark: identifies the run, at byte `position` of the journal."""

    path: Path
    journal: Path
    position: int
    mark: bytes
    bytes: int

    def is_here(self) -> bool:
        """Return True if this process sees the very file of the run."""
        try:
            fd = os.open(self.journal, os.O_RDONLY)
        except OSError:
            return False
        try:
            return os.pread(fd, len(self.mark), self.position) == self.mark and self.path.stat().st_size == self.bytes
        except OSError:
            return False
        finally:
            os.close(fd)

    def write(self, data: memoryview, offset: int) -> bool:
        """Write bytes, and return True; return False if the file is not here. Raises FileError if the disk is full."""
        if not self.is_here():
            return False
        with explained(self.path, self.bytes), reopened(self.path) as fd:
            write_at(fd, data, offset)
        return True


@contextmanager
def reopened(path: Path) -> Iterator[int]:
    """Open a file again for writing: on a network mount, others see the bytes when it is closed."""
    fd = os.open(path, os.O_WRONLY)
    try:
        yield fd
    finally:
        os.close(fd)
