"""A tensor that is read by row ranges: nothing is in memory until rows are read."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import FormatError
from .format import Format, format_named

ARRAYS = ("F32", "F16", "F64", "I8", "I16", "I32", "I64")  # formats whose values have a numpy type

ReadRows = Callable[[int, int], NDArray[np.uint8]]
ReadGroups = Callable[[NDArray[np.uint8]], NDArray[np.uint8]]


@dataclass(frozen=True)
class Tensor:
    """A named array of rows in some format: `tensor[a:b]` and `numpy.asarray(tensor)` decode it to float32.

    shape: rows first, as in numpy; the last number is the width of a row. All other dimensions together count rows.
    read(start, stop): the stored bytes of those rows, uint8 (stop - start, bytes of a row); a view where it can be.
    origin: where it comes from ("model.safetensors: model.norm.weight"), for messages.
    tail: uint8, what a format that has it keeps behind a tensor's last row; None for all others.
    """

    name: str
    shape: tuple[int, ...]
    format: Format
    read: ReadRows
    origin: str = ""
    tail: NDArray[np.uint8] | None = None

    @property
    def where(self) -> str:
        """Return the tensor's name for messages."""
        return self.origin or self.name

    @property
    def width(self) -> int:
        return self.shape[-1] if self.shape else 1

    @property
    def rows(self) -> int:
        return math.prod(self.shape[:-1])

    @property
    def size(self) -> int:
        """Return the number of values."""
        return math.prod(self.shape)

    @property
    def row_bytes(self) -> int:
        return self.format.row_bytes(self.width)

    @property
    def nbytes(self) -> int:
        return self.rows * self.row_bytes + self.format.tail_bytes

    def raw(self, start: int = 0, stop: int | None = None) -> NDArray[np.uint8]:
        """Return the stored bytes of rows start … stop: uint8 (rows, bytes of a row)."""
        return self.read(start, self.rows if stop is None else stop)

    def elements(self, start: int = 0, stop: int | None = None) -> NDArray[np.generic]:
        """Return the stored values of rows start … stop in their numpy type (bfloat16: its bits as uint16).

        Raises FormatError for block formats.
        """
        dtype = self.format.elements
        if dtype is None:
            raise FormatError(f"{self.name!r} is {self.format.name}: its values have no bytes of their own")
        raw = np.ascontiguousarray(self.raw(start, stop))
        return raw.view(dtype).reshape(len(raw), self.width)

    def float32(self, start: int | None = None, stop: int | None = None) -> NDArray[np.float32]:
        """Return decoded values: the whole tensor in its shape, or (rows, width) of rows start … stop."""
        whole = start is None and stop is None
        if self.format.dialect and self.format.has_codec:
            return readable(self).float32(start, stop)
        raw = np.ascontiguousarray(self.raw(start or 0, stop))
        decoded = self.format.decode(raw)
        return decoded.reshape(self.shape) if whole else decoded

    def __getitem__(self, index: int | slice) -> NDArray[np.float32]:
        """Return items of the first dimension, decoded: float32. Nothing else is read; steps are 1 or more.

        Raises IndexError for an item that does not exist.
        """
        count = self.shape[0] if self.shape else 0
        if isinstance(index, slice):
            start, stop, step = index.indices(count)
            if step < 1:
                raise IndexError(f"{self.name!r} is read from front to back; a step of {step} is not")
            return self._items(start, max(start, stop))[::step]
        if not -count <= index < count:
            raise IndexError(f"{self.name!r} has {count} items; there is no item {index}")
        item: NDArray[np.float32] = self._items(index % count, index % count + 1)[0]
        return item

    def _items(self, start: int, stop: int) -> NDArray[np.float32]:
        if len(self.shape) == 1:
            return self.float32()[start:stop]
        rows = math.prod(self.shape[1:-1])
        return self.float32(start * rows, stop * rows).reshape(stop - start, *self.shape[1:])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Return the decoded values, float32 unless numpy asks for another type."""
        values: NDArray[Any] = np.asarray(self.float32(), dtype)
        return values

    def __len__(self) -> int:
        return self.shape[0] if self.shape else 0

    def __repr__(self) -> str:
        return f"<Tensor {self.name!r}: {self.format.name} {self.shape}, {self.nbytes:,} bytes>"

    def renamed(self, name: str) -> Tensor:
        return replace(self, name=name)


def from_array(name: str, values: NDArray[Any], origin: str = "") -> Tensor:
    """Return a Tensor over an array in memory, stored in the array's own type: floats (bfloat16 too) or signed
    integers.

    Raises FormatError for types that GGUF has no tensors of.
    """
    values = np.asarray(values)
    if values.dtype.name == "bfloat16":  # a type of ml_dtypes, which numpy does not know by itself
        stored, form = values.view(np.uint16), "BF16"
    else:
        stored = values.astype(values.dtype.newbyteorder("<"), copy=False)
        form = next((name for name in ARRAYS if format_named(name).elements == stored.dtype), "")
    if not form:
        known = f"{', '.join(ARRAYS)} and bfloat16"
        raise FormatError(f"{name!r} is an array of {values.dtype}; GGUF has tensors of {known}")
    rows, width = math.prod(stored.shape[:-1]), stored.shape[-1] if stored.ndim else 1
    raw = np.ascontiguousarray(stored).reshape(rows, width).view(np.uint8)
    return Tensor(name, stored.shape, format_named(form), lambda start, stop: raw[start:stop], origin)


def restated(tensor: Tensor) -> Tensor:
    """Return a tensor of a dialect in the ggml format that holds exactly its values; where there is none, rows that can
    be decoded.
    """
    if not tensor.format.dialect:
        return tensor
    from .dialects import codec  # imported here because few files need it

    if tensor.tail is not None:
        tensor = _with_tail(tensor, tensor.tail, codec.of_rows(tensor.format, tensor.tail))
    form = tensor.format
    if form.same_values is None:
        return tensor

    def read(raw: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return codec.restate(form, raw)

    return replace(tensor, format=format_named(form.same_values), read=_by_groups(tensor, read))


def _with_tail(tensor: Tensor, tail: NDArray[np.uint8], form: Format) -> Tensor:
    """Return a tensor whose rows begin with the tail stored after the last row, so that each row decodes on its own."""

    def read(start: int, stop: int) -> NDArray[np.uint8]:
        raw = tensor.raw(start, stop)
        return np.hstack((np.broadcast_to(tail[: form.head_bytes], (len(raw), form.head_bytes)), raw))

    return replace(tensor, format=form, read=read, tail=None)


def readable(tensor: Tensor) -> Tensor:
    """Return a tensor of a dialect in one of ggml's own formats; where none holds its values, in float32.

    Tensors that cannot be decoded, and those that belong to no dialect, stay as they are.
    """
    if not tensor.format.dialect or not tensor.format.has_codec:
        return tensor
    plain = restated(tensor)
    form = plain.format
    if not form.dialect:
        return plain

    def read(raw: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return form.decode(raw).view(np.uint8)

    return replace(plain, format=format_named("F32"), read=_by_groups(plain, read))


def all_readable(tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Apply `readable` to tensors by name; without a dialect among them, return what was given."""
    if not any(tensor.format.dialect for tensor in tensors.values()):
        return tensors
    return {name: readable(tensor) for name, tensor in tensors.items()}


def _by_groups(tensor: Tensor, read: ReadGroups) -> ReadRows:
    """Return a reader of rows that reads whole groups of rows stored together."""
    together = tensor.format.rows_together

    def rows(start: int, stop: int) -> NDArray[np.uint8]:
        low, high = start // together * together, -(-stop // together) * together
        group_rows = read(np.ascontiguousarray(tensor.raw(low, high)))
        return group_rows[start - low : stop - low]

    return rows
