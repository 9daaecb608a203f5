"""Assemble GGUF files from ranges of others: tensors, whole or in part, are copied as stored, in any format."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from archs.metadata import Metadata
from quants import Tensor
from quants.errors import FileError, FormatError

from ..positioned import Move
from ..stores.pieces import ByteSource, Piece
from .copies import Copy
from .reader import DEFAULT_ALIGNMENT, GgufFile
from .writer import Layout, TensorInfo, plan_file


@dataclass(frozen=True)
class Stored:
    """Describe a tensor of a file to be.

    tensor: name, shape, format and values. ranges: the byte ranges it is copied from, in order; None if its rows are
    computed by `tensor.read`.
    """

    tensor: Tensor
    ranges: tuple[Piece, ...] | None

    def renamed(self, name: str) -> "Stored":
        return self if name == self.tensor.name else replace(self, tensor=self.tensor.renamed(name))

    def selected(self, kept: Sequence[int]) -> "Stored":
        """Return the items `kept` of its first dimension, in that order.

        Raises FormatError if an item has no bytes of its own.

        Rows that a format stores together must stay together, and bytes after the last row belong to all rows. The
        items of a tensor of shape (1, n) are its values.
        """
        if self.tensor.shape[:1] == (1,) and len(self.tensor.shape) == 2:
            flat = replace(self, tensor=replace(self.tensor, shape=self.tensor.shape[1:])).selected(kept)
            return replace(flat, tensor=replace(flat.tensor, shape=(1, *flat.tensor.shape)))
        tensor = self.tensor
        form, items = tensor.format, tensor.shape[0]
        if self.ranges is None or len(self.ranges) != 1:
            raise FormatError(f"{tensor.where} is made of several parts already")
        rows_each = tensor.rows // items if len(tensor.shape) > 1 else 0
        size = rows_each * tensor.row_bytes if rows_each else form.row_bytes(1) if form.block_size == 1 else 0
        if not size or rows_each % form.rows_together:
            raise FormatError(f"{tensor.where} is {form.name}, in which an item has no bytes of its own")
        original, begin, _ = self.ranges[0]
        ranges = [Piece(original, begin + first * size, (last + 1 - first) * size) for first, last in runs(kept)]
        if form.tail_bytes:
            ranges.append(Piece(original, begin + tensor.rows * tensor.row_bytes, form.tail_bytes))
        return Stored(_items(tensor, kept, rows_each), tuple(ranges))


def runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Return first and last of each run of consecutive numbers."""
    pairs: list[tuple[int, int]] = []
    for number in numbers:
        if pairs and number == pairs[-1][1] + 1:
            pairs[-1] = pairs[-1][0], number
        else:
            pairs.append((number, number))
    return pairs


def _items(tensor: Tensor, kept: Sequence[int], rows_each: int) -> Tensor:
    """Return a tensor with some items of its first dimension. rows_each: rows of an item, 0 if items are values."""
    shape, index = (len(kept), *tensor.shape[1:]), np.asarray(kept, np.intp)

    def read(start: int, stop: int) -> NDArray[np.uint8]:
        if not rows_each:
            raw = np.ascontiguousarray(tensor.raw())
            return np.ascontiguousarray(raw.reshape(tensor.shape[0], -1)[index]).reshape(1, -1)[start:stop]
        rows = np.arange(start, stop)
        wanted = index[rows // rows_each] * rows_each + rows % rows_each
        parts = [tensor.raw(first, last + 1) for first, last in runs(wanted.tolist())]
        return np.concatenate(parts or [tensor.raw(0, 0)])

    return replace(tensor, shape=shape, read=read)


def stored_tensors(opened: GgufFile) -> dict[str, Stored]:
    """Return the tensors of a file, or of all shards of a set, by name."""
    return {
        name: Stored(tensor, (Piece(original, part.offsets[name], tensor.nbytes),))
        for part, original in ((part, part.original) for part in opened.parts)
        for name, tensor in part.tensors.items()
    }


def plan_like(like: GgufFile, metadata: Metadata, tensors: Sequence[Tensor]) -> Layout:
    """Plan a file with the version, byte order and magic of another one. Raises FileError."""
    infos = [TensorInfo(tensor.name, tensor.shape, tensor.format) for tensor in tensors]
    return plan_file(metadata, infos, DEFAULT_ALIGNMENT, 0, like.magic, like.version, like.byte_order)


def planned_file(target: Path, layout: Layout, tensors: Sequence[Stored], byte_order: str = "little") -> Copy:
    """Return the copy that writes a planned file. byte_order: of the file; ranges are stored in it already."""
    sources: dict[int, tuple[ByteSource, list[Move]]] = {}
    for to, each in zip(layout.offsets, tensors, strict=True):
        for original, begin, size in _computed(each.tensor, byte_order) if each.ranges is None else each.ranges:
            sources.setdefault(id(original), (original, []))[1].append((begin, to, size))
            to += size
    return Copy(target, layout.header, layout.total, list(sources.values()))


def _computed(tensor: Tensor, byte_order: str) -> list[Piece]:
    """Return a piece whose bytes are computed when they are read."""
    size = tensor.rows * tensor.row_bytes

    def fetch(begin: int, end: int) -> NDArray[np.uint8]:
        first, last = begin // tensor.row_bytes, -(-end // tensor.row_bytes)
        raw = tensor.raw(first, last)
        raw = raw if byte_order == "little" else tensor.format.swap_byte_order(raw)
        return np.ascontiguousarray(raw).reshape(-1)[begin - first * tensor.row_bytes :][: end - begin]

    return [Piece(ByteSource(Path(), size, "", fetch), 0, size)] if size else []


def check_alike(first: GgufFile, other: GgufFile) -> None:
    """Raise FileError if the files differ in byte order or magic: bytes cannot be copied then."""
    if first.byte_order != other.byte_order:
        what = f"{other.path} is {other.byte_order} endian, {first.path} is {first.byte_order} endian"
        call = f"gguftools convert-endian {shlex.quote(str(other.path))} {first.byte_order}"
        raise FileError(what, hint=f"`{call}` makes it alike")
    if first.magic != other.magic:
        raise FileError(f"{other.path} begins with {other.magic!r}, {first.path} with {first.magic!r}")


def mapping(tensors: Mapping[str, Stored]) -> dict[str, Tensor]:
    """Return the tensors without their ranges."""
    return {name: each.tensor for name, each in tensors.items()}
