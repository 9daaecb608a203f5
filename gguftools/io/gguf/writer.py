"""Write GGUF files: plan the header to the byte, then write rows of tensors in any order."""

import math
import os
import struct
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from archs.metadata import Metadata, Value, ValueType
from archs.values import ARRAY_TYPES, INTEGERS, numbers
from quants import Format
from quants.errors import FileError
from quants.spelling import quote

from ..atomic import NOTHING, InputFiles, explained, new_file, publish, write_at
from ..positioned import PositionedOutput
from . import reader
from .reader import DEFAULT_ALIGNMENT, GgufFile, align
from .strings import ORDER_SIGN, StringArray

VERSION = 3
# Slack for later edits in place: an array of zero bytes under this key, which any reader of GGUF skips. With eight
# letters the pair has at least 32 bytes, so at the usual alignment a header can end anywhere.
RESERVE_KEY = "gguf.pad"
RESERVE_OVERHEAD = 8 + len(RESERVE_KEY) + 4 + 4 + 8


class TensorInfo(NamedTuple):
    """Describe a tensor in a header. shape: rows first."""

    name: str
    shape: tuple[int, ...]
    format: Format

    @property
    def rows(self) -> int:
        return math.prod(self.shape[:-1])

    @property
    def row_bytes(self) -> int:
        return self.format.row_bytes(self.shape[-1] if self.shape else 1)

    @property
    def nbytes(self) -> int:
        return self.rows * self.row_bytes + self.format.tail_bytes


def tensor_infos(opened: GgufFile) -> list[TensorInfo]:
    """Return the tensors of an open file as a new header lists them."""
    return [TensorInfo(tensor.name, tensor.shape, tensor.format) for tensor in opened.tensors.values()]


@dataclass(frozen=True)
class Layout:
    """Lay out a GGUF file: all bytes before the data, the offset of each tensor in the file, and the file's size."""

    header: bytes
    offsets: list[int]
    total: int
    tensors: tuple[TensorInfo, ...]
    alignment: int = DEFAULT_ALIGNMENT

    def row_offset(self, index: int, row: int) -> int:
        """Return the offset of a row of tensor `index` in the file."""
        return self.offsets[index] + row * self.tensors[index].row_bytes


def plan_file(
    metadata: Metadata,
    tensors: Sequence[TensorInfo],
    alignment: int = DEFAULT_ALIGNMENT,
    reserve: int = 0,
    magic: bytes = b"GGUF",
    version: int = VERSION,
    byte_order: str = "little",
) -> Layout:
    """Lay out a file: tensors in the order given, each padded to the alignment, the last one too.

    alignment: used unless the metadata has `general.alignment`; another value than 32 sets that key. reserve: bytes of
    slack before the data for later edits in place. Raises FileError for values that their type cannot hold, FormatError
    for rows that do not fit their format.
    """
    stored = metadata.get("general.alignment")
    alignment = alignment if stored is None else stored
    if alignment < 1 or alignment & (alignment - 1) or alignment > reader.MAX_ALIGNMENT:
        raise FileError(f"alignment {alignment}: powers of two up to {reader.MAX_ALIGNMENT} are allowed")
    if stored is None and alignment != DEFAULT_ALIGNMENT:
        metadata = metadata.copy()
        metadata.set("general.alignment", alignment, ValueType.UINT32)
    relative, end = [], 0
    for tensor in tensors:
        relative.append(end)
        end = align(end + tensor.nbytes, alignment)
    if reserve:
        metadata = with_reserve(metadata, reserve + RESERVE_OVERHEAD)
    header = encode_header(metadata, tensors, relative, magic, version, byte_order)
    if tensors:  # llama.cpp pads where data follows
        header += bytes(align(len(header), alignment) - len(header))
    offsets = [len(header) + offset for offset in relative]
    return Layout(header, offsets, len(header) + end, tuple(tensors), alignment)


def with_reserve(metadata: Metadata, size: int) -> Metadata:
    """Return a copy with `size` bytes of slack, its key included, before the first large array."""
    zeros = Value(np.zeros(max(size - RESERVE_OVERHEAD, 0), np.uint8), ValueType.ARRAY, ValueType.UINT8)
    new, placed = Metadata(), False
    for key in metadata:
        value = metadata.value(key)
        if key == RESERVE_KEY:
            continue
        if not placed and value.type is ValueType.ARRAY and len(value.data) > 256:
            new[RESERVE_KEY], placed = zeros, True
        new[key] = value
    if not placed:
        new[RESERVE_KEY] = zeros
    return new


def encode_header(
    metadata: Metadata,
    tensors: Sequence[TensorInfo],
    offsets: Sequence[int],
    magic: bytes = b"GGUF",
    version: int = VERSION,
    byte_order: str = "little",
) -> bytes:
    """Encode the header without padding; offsets count from the start of the data."""
    order = ORDER_SIGN[byte_order]
    pieces = [magic, struct.pack(f"{order}IQQ", version, len(tensors), len(metadata))]
    for key in metadata:
        value = metadata.value(key)
        try:
            _check_key(key, value)
            pieces += [_string(key, order), struct.pack(f"{order}I", value.type)]
            pieces += _value(value, order)
        except (struct.error, OverflowError, TypeError, ValueError) as error:
            type_name = value.type.name if value.element is None else f"array of {value.element.name}"
            raise FileError(f"metadata key {key!r} cannot be stored as {type_name}: {error}") from error
    seen: set[str] = set()
    for tensor, offset in zip(tensors, offsets, strict=True):
        name = _tensor_name(tensor.name, order)
        if tensor.name in seen:
            raise FileError(f"two tensors are called {tensor.name!r}")
        seen.add(tensor.name)
        n = len(tensor.shape)
        if n > reader.MAX_DIMENSIONS:
            raise FileError(f"tensor {tensor.name!r} has {n} dimensions; GGUF allows {reader.MAX_DIMENSIONS}")
        if tensor.format.ggml_type < 0:
            raise FileError(f"tensor {tensor.name!r} is {tensor.format.name}, a type that GGUF files cannot hold")
        pieces.append(name)
        pieces.append(struct.pack(f"{order}I{n}QIQ", n, *reversed(tensor.shape), tensor.format.ggml_type, offset))
    return b"".join(pieces)


def _check_key(key: str, value: Value) -> None:
    """Raise ValueError for a pair that our own reader would refuse."""
    if not 0 < len(key.encode()) <= reader.MAX_NAME_BYTES:
        raise ValueError(f"keys have 1 to {reader.MAX_NAME_BYTES} bytes")
    known = reader.STRUCTURAL_KEYS.get(key)
    if known and not known.allows(value):
        types = INTEGERS if known.any_width else (known.type,)
        raise ValueError(f"this key must be {' or '.join(type.name for type in types)}")


def _tensor_name(name: str, order: str) -> bytes:
    """Encode a name. Raises FileError for one that a reader would refuse."""
    try:
        raw = _string(name, order)
    except UnicodeEncodeError as error:
        raise FileError(f"a tensor's name, {quote(name)}, is no UTF-8: {error.reason}") from error
    size, limit = len(raw) - 8, reader.MAX_NAME_BYTES
    if not 0 < size <= limit:
        raise FileError(f"a tensor's name, {quote(name)}, has {size} bytes; 1 to {limit} are allowed")
    return raw


def _string(text: Any, order: str) -> bytes:
    if not isinstance(text, (str, bytes)):
        raise TypeError(f"{text!r} is not a string")
    raw = text if isinstance(text, bytes) else text.encode()
    return struct.pack(f"{order}Q", len(raw)) + raw


def _value(value: Value, order: str) -> Iterable[bytes]:
    if value.type is ValueType.ARRAY:
        return _array(value, order)
    if value.type is ValueType.STRING:
        return [_string(value.data, order)]
    if value.type is ValueType.BOOL and value.data not in (0, 1):
        raise ValueError(f"{value.data!r} is neither true nor false")
    return [struct.pack(order + reader.SCALARS[value.type], value.data)]


def _array(value: Value, order: str) -> Iterator[bytes]:
    element = value.element
    if element is None:
        raise ValueError("its items have no type")
    yield struct.pack(f"{order}IQ", element, len(value.data))
    if element is ValueType.ARRAY:
        for item in value.data:
            yield from _array(item, order)
    elif element is ValueType.STRING:
        if isinstance(value.data, StringArray) and order == "<":
            yield value.data.raw().tobytes()
        else:
            yield b"".join(_string(item, order) for item in value.data)
    else:
        yield numbers(value.data, element).astype(order + ARRAY_TYPES[element]).tobytes()


class Figures(NamedTuple):
    """Measure a written row range: sum of squared errors and largest error, None if not measured; seconds."""

    squares: float | None = None
    largest: float | None = None
    seconds: float = 0.0


NOT_MEASURED = Figures()


class Output(Protocol):
    """Take bytes by position, from any thread."""

    def write(self, data: memoryview, offset: int) -> None: ...


class OpenGguf:
    """Write a GGUF file: rows of any tensor, in any order, from any thread.

    fd: the open file. output: takes bytes by position; default the file.
    """

    def __init__(self, fd: int, layout: Layout, target: Path, output: Output | None = None) -> None:
        self._fd, self._layout, self._target, self._output = fd, layout, target, output or PositionedOutput(fd)
        self._written = [0] * len(layout.tensors)
        self._state, self._busy, self._closed = threading.Condition(), 0, False

    def lay_out(self) -> None:
        """Write the header, and make room for all rows; padding between tensors stays zero."""
        os.ftruncate(self._fd, self._layout.total)
        write_at(self._fd, memoryview(self._layout.header), 0)

    def covered(self, index: int, start: int, stop: int) -> Figures | None:
        """Return the figures of rows start … stop of tensor `index` if an earlier run wrote exactly these."""
        return None

    def write(
        self,
        index: int,
        first_row: int,
        raw: NDArray[np.uint8],
        figures: Figures = NOT_MEASURED,
        tail: NDArray[np.uint8] | None = None,
    ) -> None:
        """Write rows of tensor `index` from `first_row` on: uint8 (rows, bytes of a row).

        figures: what they cost. tail: bytes after the last row, for formats with a tail. Raises FileError if the disk
        is full or the file was abandoned, ValueError for rows that the tensor hasn't.
        """
        tensor = self._layout.tensors[index]
        if raw.dtype != np.uint8 or raw.ndim != 2 or raw.shape[1] != tensor.row_bytes:
            raise ValueError(f"{tensor.name!r} takes uint8 (rows, {tensor.row_bytes}), not {raw.dtype} {raw.shape}")
        if first_row < 0 or first_row + len(raw) > tensor.rows:
            raise ValueError(f"{tensor.name!r} has {tensor.rows} rows, not {first_row} … {first_row + len(raw)}")
        with self._state:
            if self._closed:
                raise FileError(f"writing {self._target} was abandoned")
            self._busy += 1
        try:
            with explained(self._target, self._layout.total):
                data = np.ascontiguousarray(raw).reshape(-1)
                data = data if tail is None else np.concatenate((data, tail))
                self._output.write(data.data, self._layout.row_offset(index, first_row))
        finally:
            with self._state:
                self._busy -= 1
                self._written[index] += len(raw)
                self._state.notify_all()

    def close(self) -> None:
        """Wait for running writes, and refuse new ones."""
        with self._state:
            self._closed = True
            self._state.wait_for(lambda: not self._busy)

    def check_complete(self) -> None:
        for tensor, rows in zip(self._layout.tensors, self._written, strict=True):
            if rows < tensor.rows and tensor.nbytes:
                raise FileError(f"{self._target}: only {rows} of {tensor.rows} rows of {tensor.name!r} were written")


@contextmanager
def create_ggufs(
    plans: Sequence[tuple[Path, Layout]], overwrite: bool = False, reads: InputFiles = NOTHING
) -> Iterator[list[OpenGguf]]:
    """Create several GGUF files, which appear when all are complete, the first last.

    Rows are written in the block. If it raises, or a row is missing, nothing appears and older files stay as they were.
    Raises an error at once if a file may not be written (see `io.atomic`), or if the disk has too little space.
    """
    with ExitStack() as stack:
        files, outputs = [], []
        for path, layout in plans:
            file = stack.enter_context(new_file(path, layout.total, reads=reads, overwrite=overwrite))
            output = OpenGguf(file.fd, layout, path)
            stack.callback(output.close)
            with explained(path, layout.total):
                output.lay_out()
            files.append(file)
            outputs.append(output)
        yield outputs
        for output in outputs:
            output.close()
            output.check_complete()
        with explained(plans[0][0], sum(layout.total for _, layout in plans)):
            publish(*files)
