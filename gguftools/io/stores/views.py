"""Objects as arrays of bytes, of which ranges are read when they are looked at."""

import hashlib
from collections.abc import Callable

from .block_cache import BlockCache
from .pieces import Original
from .trying import Bytes

AT_ONCE = 1 << 20  # bytes: what is shorter is an array


class Followed:
    """The bytes of an object, read in blocks, the next ones ahead; their SHA-256 is made of them as they come by.

    original: the object.
    """

    def __init__(self, original: Original) -> None:
        self._size = original.size
        self._read = BlockCache(lambda _, begin, end: original.read(begin, end), kept=8).reader("", (0, original.size))
        self._digest, self._digested = hashlib.sha256(), 0

    def read(self, begin: int, end: int) -> Bytes:
        """Bytes begin … end. Raises FileError."""
        while self._digested < begin:  # these are needed, too
            self._digested_until(min(begin, self._digested + AT_ONCE))
        found = self._read(begin, end)
        if begin <= self._digested < end:
            self._digest.update(found[self._digested - begin :].data)
            self._digested = end
        return found

    def _digested_until(self, end: int) -> None:
        self._digest.update(self._read(self._digested, end).data)
        self._digested = end

    def sha256(self, progress: Callable[[int], None]) -> str:
        """SHA-256 of it all; progress(bytes) as of what is read for it. Raises FileError."""
        progress(self._digested)
        while self._digested < self._size:
            begin = self._digested
            self._digested_until(min(self._size, begin + AT_ONCE))
            progress(self._digested - begin)
        return self._digest.hexdigest()


class View:
    """Bytes begin … end of an object; slices that are short are arrays, others such views."""

    def __init__(self, followed: Followed, begin: int, end: int) -> None:
        self.followed, self.begin, self.end = followed, begin, end

    def __len__(self) -> int:
        return self.end - self.begin

    def __getitem__(self, part: slice) -> "Bytes | View":
        """Raises FileError; IndexError for steps."""
        start, stop, step = part.indices(len(self))
        if step != 1:
            raise IndexError("views have no steps")
        begin, end = self.begin + start, self.begin + max(start, stop)
        return self.followed.read(begin, end) if end - begin <= AT_ONCE else View(self.followed, begin, end)
