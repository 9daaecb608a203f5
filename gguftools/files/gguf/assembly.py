"""New GGUF files made of ranges of others: tensors, whole or in part, moved as they are stored, in any format."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from archs.metadata import Metadata
from quants import Tensor
from quants.errors import FileError, FormatError

from ..atomic import NOTHING, Reads
from ..positioned import CopyProgress, Move
from .reader import DEFAULT_ALIGNMENT, GgufFile
from .writer import Layout, TensorInfo, create_ggufs, plan_file

STEP = 1 << 24  # bytes of computed rows that are written at once


class Range(NamedTuple):
    """Bytes of a file."""

    path: Path
    begin: int
    size: int


@dataclass(frozen=True)
class Stored:
    """A tensor of a file that is to be, and the ranges of bytes, in order, that it is made of.

    tensor: its name, shape and format, and its values. ranges: None for one whose rows are computed, by `tensor.read`.
    """

    tensor: Tensor
    ranges: tuple[Range, ...] | None

    def renamed(self, name: str) -> "Stored":
        return self if name == self.tensor.name else replace(self, tensor=self.tensor.renamed(name))

    def selected(self, kept: Sequence[int]) -> "Stored":
        """Items `kept` of its first dimension, in that order. Raises FormatError where they have no bytes of their own.

        Rows that a format stores together must stay so, and bytes behind the last row belong to all of them. Of one
        row of values, (1, n), the values are the items.
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
        path, begin, _ = self.ranges[0]
        ranges = [Range(path, begin + first * size, (last + 1 - first) * size) for first, last in runs(kept)]
        if form.tail_bytes:
            ranges.append(Range(path, begin + tensor.rows * tensor.row_bytes, form.tail_bytes))
        return Stored(_items(tensor, kept, rows_each), tuple(ranges))


def runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """First and last of each run of numbers that follow each other."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    return found


def _items(tensor: Tensor, kept: Sequence[int], rows_each: int) -> Tensor:
    """The tensor with some items of its first dimension. rows_each: rows of an item, 0 where items are values."""
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
    """The tensors of a file, or of a set's shards, as they are."""
    return {
        name: Stored(tensor, (Range(part.path, part.offsets[name], tensor.nbytes),))
        for part in opened.parts
        for name, tensor in part.tensors.items()
    }


def plan_like(like: GgufFile, metadata: Metadata, tensors: Sequence[Tensor]) -> Layout:
    """A file of the version, byte order and magic of another one. Raises FileError."""
    infos = [TensorInfo(tensor.name, tensor.shape, tensor.format) for tensor in tensors]
    return plan_file(metadata, infos, DEFAULT_ALIGNMENT, 0, like.magic, like.version, like.byte_order)


def write_stored(
    target: Path, layout: Layout, tensors: Sequence[Stored], overwrite: bool = False, reads: Reads = NOTHING,
    progress: CopyProgress | None = None, byte_order: str = "little",
) -> None:  # fmt: skip
    """Write a planned file, within the kernel where it can be. progress(done, total): bytes. Raises FileError.

    byte_order: the file's; ranges are stored in it already.
    """
    moves: dict[Path, list[Move]] = {}
    computed = [(index, each.tensor) for index, each in enumerate(tensors) if each.ranges is None]
    for to, each in zip(layout.offsets, tensors, strict=True):
        for path, begin, size in each.ranges or ():
            moves.setdefault(path, []).append((begin, to, size))
            to += size
    total, done = sum(each.tensor.nbytes for each in tensors), 0
    with create_ggufs([(target, layout)], overwrite, reads) as (file,):
        for path, wanted in moves.items():
            file.copy(path, wanted, _going_on(progress, done, total))
            done += sum(size for _, _, size in wanted)
        for index, tensor in computed:
            step = max(1, STEP // max(1, tensor.row_bytes))
            for start in range(0, tensor.rows, step):
                raw = tensor.raw(start, min(start + step, tensor.rows))
                file.write(index, start, raw if byte_order == "little" else tensor.format.swap_byte_order(raw))
                done += raw.size
                if progress:
                    progress(done, total)


def _going_on(progress: CopyProgress | None, done: int, total: int) -> CopyProgress | None:
    return None if progress is None else lambda now, _: progress(done + now, total)


def check_alike(first: GgufFile, other: GgufFile) -> None:
    """Raise FileError where bytes of one mean something else in the other."""
    if first.byte_order != other.byte_order:
        what = f"{other.path} is {other.byte_order} endian, {first.path} is {first.byte_order} endian"
        raise FileError(what, hint=f"`gguftools convert-endian {other.path} {first.byte_order}` makes it alike")
    if first.magic != other.magic:
        raise FileError(f"{other.path} begins with {other.magic!r}, {first.path} with {first.magic!r}")


def mapping(tensors: Mapping[str, Stored]) -> dict[str, Tensor]:
    """Names, shapes, formats and values alone."""
    return {name: each.tensor for name, each in tensors.items()}
