"""Matrices that are kept in memory while columns of them are read.

A block of rows of a transposed matrix needs a piece of each of its rows: reading them from the file for every block
would read the file a hundred times.
"""

import threading
import weakref

import numpy as np
from numpy.typing import NDArray

from quants import FormatError, Tensor

LIMIT = 256 << 20  # bytes kept in all, beyond the matrix used last


def element_type(tensor: Tensor) -> np.dtype[np.generic]:
    """Return the numpy type of a tensor's values. Raises FormatError for block formats."""
    if tensor.format.elements is None:
        raise FormatError(f"{tensor.where} is {tensor.format.name}; its values cannot be moved one by one")
    return tensor.format.elements


class CachedRows:
    """Rows start … stop of a tensor, kept in memory from the first use; the oldest are dropped first."""

    def __init__(self, tensor: Tensor, start: int = 0, stop: int | None = None) -> None:
        self._tensor = tensor
        self._start, self._stop = start, stop
        self._raw: NDArray[np.uint8] | None = None
        self._lock = threading.Lock()

    def elements(self) -> NDArray[np.generic]:
        """Return the stored values, (rows, width). Raises FormatError for block formats."""
        dtype = element_type(self._tensor)
        with self._lock:  # others wait instead of reading the same rows
            raw = self._raw
            if raw is None:
                raw = self._raw = np.ascontiguousarray(self._tensor.raw(self._start, self._stop))
        _used(self)
        return raw.view(dtype)

    @property
    def nbytes(self) -> int:
        return 0 if self._raw is None else self._raw.nbytes

    def drop(self) -> None:
        self._raw = None


_recent: list[weakref.ref[CachedRows]] = []  # the one used last is first
_order = threading.Lock()


def _used(kept: CachedRows) -> None:
    """Record a use, and drop what was not used for long."""
    with _order:
        others = [each for known in _recent if (each := known()) is not None and each is not kept and each.nbytes]
        held = kept.nbytes
        for each in others:
            held += each.nbytes
            if held > LIMIT:
                each.drop()
        _recent[:] = [weakref.ref(each) for each in (kept, *others) if each.nbytes]
