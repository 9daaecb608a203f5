"""A file that several processes write into, on machines that may or may not see it."""

import os
from pathlib import Path
from typing import NamedTuple

from .atomic import explained, write_at


class SharedFile(NamedTuple):
    """A file that is written by several processes. mark: of this run, at byte `position` of the journal."""

    path: Path
    journal: Path
    position: int
    mark: bytes
    bytes: int

    def is_here(self) -> bool:
        """Whether this process sees it as the run that it belongs to does."""
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
        """Write bytes, unless the file is not here. Raises FileError where the disk is full."""
        if not self.is_here():
            return False
        with explained(self.path, self.bytes):
            fd = os.open(self.path, os.O_WRONLY)
            try:
                write_at(fd, data, offset)
            finally:
                os.close(fd)  # on a network mount, what others see from here on
        return True
