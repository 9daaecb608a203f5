"""Matrices that are kept in memory while columns of them are read.

A block of rows of a transposed matrix needs a piece of each of its rows: reading them from the file for every block
would read the file a hundred times.
"""

import threading
import weakref
from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

from quants import FormatError, Tensor

LIMIT = 256 << 20  # bytes kept in all, beyond the matrix used last


class CachedRows:
    """Rows start … stop of a tensor, all of them in memory from when they are first asked for; the oldest go first."""

    def __init__(self, tensor: Tensor, start: int = 0, stop: int | None = None) -> None:
        self._tensor = tensor
        self._start, self._stop = start, tensor.rows if stop is None else stop
        self._raw: NDArray[np.uint8] | None = None
        self._lock = threading.Lock()

    def raw(self) -> NDArray[np.uint8]:
        """The stored bytes: uint8 (rows, bytes of a row)."""
        with self._lock:  # others wait instead of reading the same
            raw = self._raw
            if raw is None:
                raw = self._raw = np.ascontiguousarray(self._tensor.raw(self._start, self._stop))
        _used(self)
        return raw

    def elements(self) -> NDArray[np.generic]:
        """The stored values, (rows, width). Raises FormatError for block formats."""
        dtype = self._tensor.format.elements
        if dtype is None:
            raise FormatError(f"{self._tensor.origin or self._tensor.name} is {self._tensor.format.name}")
        return self.raw().view(dtype)

    @property
    def nbytes(self) -> int:
        return 0 if self._raw is None else self._raw.nbytes

    def drop(self) -> None:
        self._raw = None


_recent: OrderedDict[int, weakref.ref[CachedRows]] = OrderedDict()  # the one used last at the end
_order = threading.Lock()


def _used(kept: CachedRows) -> None:
    """Note a use, and let go of what was not used for long."""
    with _order:
        _recent[id(kept)] = weakref.ref(kept)
        _recent.move_to_end(id(kept))
        alive = [found for reference in reversed(_recent.values()) if (found := reference()) is not None]
        held = 0
        for found in alive:
            if held and held + found.nbytes > LIMIT:
                found.drop()
            held += found.nbytes
        _recent.clear()
        _recent.update((id(found), weakref.ref(found)) for found in reversed(alive) if found.nbytes)
