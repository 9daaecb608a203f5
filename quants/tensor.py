"""A tensor that is read by row ranges: nothing is in memory until rows are asked for."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .errors import FormatError
from .format import Format, format_named

ReadRows = Callable[[int, int], NDArray[np.uint8]]


@dataclass(frozen=True)
class Tensor:
    """A named array of rows in some format.

    shape: rows first, as in numpy; the last number is the width of a row. All other dimensions together count rows.
    read(start, stop): the stored bytes of those rows, uint8 (stop - start, bytes of a row); a view where it can be.
    origin: where it comes from ("model.safetensors: model.norm.weight"), for messages.
    """

    name: str
    shape: tuple[int, ...]
    format: Format
    read: ReadRows
    origin: str = ""

    @property
    def width(self) -> int:
        return self.shape[-1] if self.shape else 1

    @property
    def rows(self) -> int:
        return math.prod(self.shape[:-1])

    @property
    def size(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    @property
    def row_bytes(self) -> int:
        return self.format.row_bytes(self.width)

    @property
    def nbytes(self) -> int:
        return self.rows * self.row_bytes

    def raw(self, start: int = 0, stop: int | None = None) -> NDArray[np.uint8]:
        """The stored bytes of rows start … stop: uint8 (rows, bytes of a row)."""
        return self.read(start, self.rows if stop is None else stop)

    def elements(self, start: int = 0, stop: int | None = None) -> NDArray[np.generic]:
        """The stored values of rows start … stop as numpy knows them (bfloat16: its bits as uint16).

        Raises FormatError for block formats.
        """
        dtype = self.format.elements
        if dtype is None:
            raise FormatError(f"{self.name!r} is {self.format.name}: its values have no bytes of their own")
        raw = np.ascontiguousarray(self.raw(start, stop))
        return raw.view(dtype).reshape(len(raw), self.width)

    def float32(self, start: int | None = None, stop: int | None = None) -> NDArray[np.float32]:
        """Decoded values: the whole tensor in its shape, or (rows, width) of rows start … stop."""
        whole = start is None and stop is None
        raw = np.ascontiguousarray(self.raw(start or 0, stop))
        decoded = self.format.decode(raw)
        return decoded.reshape(self.shape) if whole else decoded

    def renamed(self, name: str) -> Tensor:
        return replace(self, name=name)


def from_array(name: str, values: NDArray[np.float32], origin: str = "") -> Tensor:
    """A Tensor over float32 values that are already in memory."""
    values = np.ascontiguousarray(values, "<f4")
    raw = values.reshape(-1, values.shape[-1] if values.ndim else 1).view(np.uint8)
    return Tensor(name, values.shape, format_named("F32"), lambda start, stop: raw[start:stop], origin)
