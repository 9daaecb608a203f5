"""Find byte ranges of a model's files in those of another version of it.

Tensors of one name are compared block by block, headers from both ends. The rest is searched for anywhere in the old
files: renamed tensors, renumbered experts and layers.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...io.gguf.reader import GgufFile, map_file
from ...io.stores.views import AT_ONCE, HashedReader, View

BLOCK = 1 << 16  # bytes that are compared at once
MIN_COPY = 64  # bytes; a range that is shorter costs more than its bytes
MIN_SEARCH, MAX_BLOCKS = 1 << 12, 1 << 22  # bytes of a block to search for, maximum blocks

Raw = Any  # uint8 of a file: an array, or a View of an object in a store, of which slices are looked at


class Span(NamedTuple):
    """Bytes of the new files: a range of the old ones from `begin` on, or (begin -1) new bytes."""

    begin: int
    size: int


@dataclass(frozen=True)
class Space:
    """The files of a model, concatenated."""

    parts: Sequence[GgufFile]

    @property
    def starts(self) -> list[int]:
        return [sum(part.file_size for part in self.parts[:i]) for i in range(len(self.parts))]

    @cached_property
    def raw(self) -> list[Raw]:
        """Return the files' bytes, mapped; objects in a store are read on access. Raises FileError."""
        return [
            View(HashedReader(part.original), 0, part.file_size) if part.is_stored else map_file(part.path, "GGUF file")
            for part in self.parts
        ]

    @property
    def size(self) -> int:
        return sum(part.file_size for part in self.parts)


def spans(old: Space, new: Space, progress: Callable[[int], None] = lambda done: None) -> list[Span]:
    """Return the new files as ranges of the old ones and new bytes, in order; progress(bytes compared)."""
    old_raw, old_starts = old.raw, old.starts
    tensors = {name: (index, part.offsets[name]) for index, part in enumerate(old.parts) for name in part.offsets}
    ends = [_ends(part) for part in old.parts]
    spans_by_file: list[tuple[Raw, list[Span]]] = []
    for number, (part, raw) in enumerate(zip(new.parts, new.raw, strict=True)):
        mine = list(_header(raw[: part.data_offset], part, number, old, old_raw, old_starts))
        for name, begin, end in _tensors(part):
            if name not in tensors:
                mine.append(Span(-1, end - begin))
                continue
            index, at = tensors[name]
            theirs = old_raw[index][at : ends[index][name]]
            mine += _compared(raw[begin:end], theirs, old_starts[index] + at)
            progress(end - begin)
        spans_by_file.append((raw, list(_merged(mine))))
    return list(_merged(_search(spans_by_file, old_raw, old_starts, old.size)))


def _tensors(part: GgufFile) -> Iterator[tuple[str, int, int]]:
    """Yield each tensor with the bytes up to the next one, from the end of the header to that of the file."""
    order = sorted(part.offsets.items(), key=lambda each: each[1])
    data = min(part.data_offset, part.file_size)
    for i, (name, offset) in enumerate(order):
        yield name, data if i == 0 else offset, order[i + 1][1] if i + 1 < len(order) else part.file_size
    if not order and data < part.file_size:
        yield "", data, part.file_size


def _ends(part: GgufFile) -> dict[str, int]:
    return {name: end for name, _, end in _tensors(part)}


def _header(
    mine: Raw, part: GgufFile, number: int, old: Space, raw: Sequence[Raw], starts: Sequence[int]
) -> Iterator[Span]:
    """Yield a header as the common beginning and end with the old one."""
    index = min(number, len(old.parts) - 1)
    end, their_end = min(part.header_bytes, len(mine)), old.parts[index].header_bytes
    theirs = raw[index][: old.parts[index].data_offset]
    front = _equal(mine[:end], theirs[:their_end])
    back = _equal_back(mine[front:end], theirs[front:their_end])
    yield Span(starts[index], front)
    yield Span(-1, end - front - back)
    yield Span(starts[index] + their_end - back, back)
    yield from _compared(mine[end:], theirs[their_end:], starts[index] + their_end)


def _compared(mine: Raw, theirs: Raw, begin: int) -> Iterator[Span]:
    """Yield bytes compared with others that begin at `begin`, block by block; differing blocks from both ends."""
    common = min(len(mine), len(theirs))
    for at in range(0, common, BLOCK):
        a, b = mine[at : min(at + BLOCK, common)], theirs[at : min(at + BLOCK, common)]
        if np.array_equal(a, b):
            yield Span(begin + at, len(a))
            continue
        different = np.flatnonzero(a != b)
        first, last = int(different[0]), int(different[-1]) + 1
        yield Span(begin + at, first)
        yield Span(-1, last - first)
        yield Span(begin + at + last, len(a) - last)
    yield Span(-1, len(mine) - common)


def _merged(pieces: Iterator[Span] | list[Span]) -> Iterator[Span]:
    """Yield spans with adjacent ones joined; ranges that are too short become new bytes."""
    return _joined(_long_enough(_joined(pieces)))


def _joined(pieces: Iterator[Span] | list[Span]) -> Iterator[Span]:
    last = Span(-1, 0)
    for each in pieces:
        if not each.size:
            continue
        follows = last.begin + last.size == each.begin if last.begin >= 0 else each.begin < 0
        if last.size and follows:
            last = Span(last.begin, last.size + each.size)
            continue
        if last.size:
            yield last
        last = each
    if last.size:
        yield last


def _long_enough(pieces: Iterator[Span]) -> Iterator[Span]:
    for each in pieces:
        yield each if each.size >= MIN_COPY else Span(-1, each.size)


def _search(
    files: Sequence[tuple[Raw, list[Span]]], old: Sequence[Raw], starts: Sequence[int], total: int
) -> Iterator[Span]:
    """Yield the spans with new bytes searched for anywhere in the old files."""
    size = MIN_SEARCH
    while size * MAX_BLOCKS < total:
        size *= 2
    if not any(each.begin < 0 and each.size >= size for _, spans in files for each in spans):
        for _, mine in files:
            yield from mine
        return
    from quants.kernels.rolling import add_blocks  # here, because numba takes long to import

    slots = 1 << (2 * total // size + 2).bit_length()
    keys, places = np.zeros(slots, np.uint64), np.full(slots, -1, np.int64)
    for raw, start in zip(old, starts, strict=True):
        for at in range(0, len(raw), max(size, AT_ONCE)):  # both are powers of two
            add_blocks(_array(raw[at : at + max(size, AT_ONCE)]), start + at, size, keys, places)
    for raw, mine in files:
        at = 0
        for each in mine:
            if each.begin < 0 and each.size >= size:
                yield from _search_in(raw[at : at + each.size], old, starts, size, keys, places)
            else:
                yield each
            at += each.size


def _search_in(
    mine: Raw, old: Sequence[Raw], starts: Sequence[int], size: int, keys: NDArray[np.uint64], places: NDArray[np.int64]
) -> Iterator[Span]:
    done = at = 0
    while True:
        at, place = _next_block(mine, at, size, keys, places)
        if at < 0:
            yield Span(-1, len(mine) - done)
            return
        index = max(i for i, start in enumerate(starts) if start <= place)
        theirs, there = old[index], place - starts[index]
        if _equal(mine[at : at + size], theirs[there : there + size]) < size:
            at += 1
            continue
        before = _equal_back(mine[done:at], theirs[:there])
        after = _equal(mine[at + size :], theirs[there + size :])
        yield Span(-1, at - before - done)
        yield Span(place - before, before + size + after)
        done = at = at + size + after


def _next_block(mine: Raw, at: int, size: int, keys: NDArray[np.uint64], places: NDArray[np.int64]) -> tuple[int, int]:
    """Return the first position from `at` on where a block of the old files may be, and the block's; (-1, -1)
    for none.
    """
    from quants.kernels.rolling import find_block

    step = len(mine) if isinstance(mine, np.ndarray) else max(2 * size, AT_ONCE)
    while at + size <= len(mine):
        window = _array(mine[at : at + step])
        offset, place = find_block(window, 0, size, keys, places)
        if offset >= 0:
            return at + int(offset), int(place)
        at += len(window) - size + 1
    return -1, -1


def _array(raw: Raw) -> NDArray[np.uint8]:
    """Return the bytes. Raises FileError."""
    return raw.followed.read(raw.begin, raw.end) if isinstance(raw, View) else np.asarray(raw)


def _equal_back(a: Raw, b: Raw) -> int:
    """Return the length of the common end."""
    common = min(len(a), len(b))
    for at in range(0, common, BLOCK):
        size = min(BLOCK, common - at)
        x, y = (each[len(each) - at - size : len(each) - at] for each in (a, b))
        if not np.array_equal(x, y):
            return at + int(np.argmax((x != y)[::-1]))
    return common


def _equal(a: Raw, b: Raw) -> int:
    """Return the length of the common beginning."""
    common, step = min(len(a), len(b)), BLOCK
    for at in range(0, common, step):
        x, y = a[at : min(at + step, common)], b[at : min(at + step, common)]
        if not np.array_equal(x, y):
            return at + int(np.argmax(x != y))
    return common
