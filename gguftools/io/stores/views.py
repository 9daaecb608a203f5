"""View objects as byte arrays whose ranges are read when they are used."""

import hashlib
from collections.abc import Callable

from .block_cache import BlockCache
from .pieces import ByteSource
from .retries import Bytes

AT_ONCE = 1 << 20  # bytes: what is shorter is an array


class HashedReader:
    """Read an object in blocks, ahead of use, and compute its SHA-256 on the way."""

    def __init__(self, original: ByteSource) -> None:
        self._size = original.size
        self._read = BlockCache(lambda _, begin, end: original.read(begin, end), kept=8).reader("", (0, original.size))
        self._digest, self._digested = hashlib.sha256(), 0

    def read(self, begin: int, end: int) -> Bytes:
        """Return bytes begin … end, uint8. Raises FileError."""
        while self._digested < begin:  # these are needed, too
            self._digested_until(min(begin, self._digested + AT_ONCE))
        data = self._read(begin, end)
        if begin <= self._digested < end:
            self._digest.update(data[self._digested - begin :].data)
            self._digested = end
        return data

    def _digested_until(self, end: int) -> None:
        self._digest.update(self._read(self._digested, end).data)
        self._digested = end

    def sha256(self, progress: Callable[[int], None]) -> str:
        """Return the hex SHA-256 of the whole object; call progress(bytes read). Raises FileError."""
        progress(self._digested)
        while self._digested < self._size:
            begin = self._digested
            self._digested_until(min(self._size, begin + AT_ONCE))
            progress(self._digested - begin)
        return self._digest.hexdigest()


class View:
    """View bytes begin … end of an object; slices of at most AT_ONCE bytes are arrays, longer ones are views."""

    def __init__(self, followed: HashedReader, begin: int, end: int) -> None:
        self.followed, self.begin, self.end = followed, begin, end

    def __len__(self) -> int:
        return self.end - self.begin

    def __getitem__(self, part: slice) -> "Bytes | View":
        """Raise FileError if reading fails, IndexError for a step."""
        start, stop, step = part.indices(len(self))
        if step != 1:
            raise IndexError("views have no steps")
        begin, end = self.begin + start, self.begin + max(start, stop)
        return self.followed.read(begin, end) if end - begin <= AT_ONCE else View(self.followed, begin, end)
