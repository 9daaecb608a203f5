"""Bit layouts of blocks as arrays of bit numbers, which take blocks apart and assemble them.

Bits count from the first byte's lowest. `block(2, 16)` gives the numbers of the bits of the first 2 and the next 16
bytes, (2, 8) and (16, 8); reshaping and transposing these says which bits make up which field. A field of a layout is
int32 (rows, count, bits): for each of the rows that are stored together, for each number, its bits, lowest first.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Labels = NDArray[np.int32]
Layout = Mapping[str, Labels]
Bytes = NDArray[np.uint8]
Fields = dict[str, NDArray[Any]]  # unsigned


def block(*sizes: int) -> list[Labels]:
    """Return numbers of the bits of parts that follow each other: int32 (bytes of the part, 8) each."""
    every = np.arange(8 * sum(sizes), dtype=np.int32).reshape(-1, 8)
    return np.split(every, np.cumsum(sizes)[:-1])


def placed(labels: Labels, shape: tuple[int, ...], order: tuple[int, ...], bits: int, rows: int = 1) -> Labels:
    """Return labels seen in `shape`, its axes put in `order`, as a field (rows, count, bits)."""
    return np.transpose(labels.reshape(shape), order).reshape(rows, -1, bits)


def joined(*parts: Labels) -> Labels:
    """Return a field whose numbers have the bits of several, lowest first."""
    return np.concatenate(parts, axis=-1)


def _runs(labels: Labels) -> Iterator[tuple[int, int]]:
    """Return the bits of all numbers that lie side by side in a byte: the first, and how many."""
    start, width = 0, labels.shape[-1]
    for end in range(1, width + 1):
        goes_on = end < width and bool(
            (labels[..., end] == labels[..., end - 1] + 1).all() and (labels[..., end] % 8 > 0).all()
        )
        if not goes_on:
            yield start, end - start
            start = end


def take_apart(blocks: Bytes, labels: Labels) -> NDArray[Any]:
    """Return one field's numbers in each of the blocks (n, bytes): unsigned (n, rows, count)."""
    rows, count, width = labels.shape
    dtype = np.dtype(np.uint8 if width <= 8 else np.uint16 if width <= 16 else np.uint32)
    numbers = np.zeros((len(blocks), rows * count), dtype)
    for low, length in _runs(labels):
        byte, shift = np.divmod(labels[..., low].reshape(-1), 8)
        part = np.take(blocks, byte, axis=1)
        part >>= shift.astype(np.uint8)
        part &= np.uint8((1 << length) - 1)
        numbers |= np.left_shift(part, low, dtype=dtype)
    return numbers.reshape(len(blocks), rows, count)


def put_together(fields: Fields, layout: Layout, block_bytes: int) -> Bytes:
    """Return the blocks (n, bytes) that have those numbers, (n, count) of each field, by a layout of one row."""
    some = next(iter(fields.values()))
    blocks = np.zeros((len(some), block_bytes), np.uint8)
    for name, labels in layout.items():
        for low, length in _runs(labels):
            byte, shift = np.divmod(labels[0, :, low], 8)
            part = (fields[name] >> low).astype(np.uint8)
            part &= np.uint8((1 << length) - 1)
            for each in np.unique(shift):
                chosen = np.flatnonzero(shift == each)
                blocks[:, byte[chosen]] |= part[:, chosen] << np.uint8(each)
    return blocks


class Move(NamedTuple):
    """Bits that move from some bytes to others: `mask` selects the bits of a byte after it is shifted down."""

    source: NDArray[np.intp]
    down: np.uint8
    mask: np.uint8
    target: NDArray[np.intp]
    up: np.uint8


def moves(source: Layout, target: Layout, block_bytes: int) -> list[Move]:
    """Return the moves that turn rows stored together into separate blocks of `block_bytes` bytes, one after the
    other.
    """
    froms, tos = [], []
    for name, labels in source.items():
        rows = np.arange(len(labels), dtype=np.int32)[:, None, None]
        tos.append((target[name] + 8 * block_bytes * rows).reshape(-1))
        froms.append(labels.reshape(-1))
    to, by = np.concatenate(tos), np.concatenate(froms)
    order = np.argsort(to)
    to, by = to[order], by[order]
    begins = np.r_[True, (np.diff(by) != 1) | (by[1:] % 8 == 0) | (to[1:] % 8 == 0)]
    first = np.flatnonzero(begins)
    length = np.diff(np.r_[first, len(to)])
    shifts = np.stack((by[first] % 8, to[first] % 8, length))
    planned = []
    for down, up, bits in np.unique(shifts, axis=1).T:
        chosen = first[(shifts == np.array([[down], [up], [bits]])).all(axis=0)]
        source_bytes, target_bytes = (each[chosen].astype(np.intp) // 8 for each in (by, to))
        planned.append(Move(source_bytes, np.uint8(down), np.uint8((1 << bits) - 1), target_bytes, np.uint8(up)))
    return planned


def moved(blocks: Bytes, plan: Sequence[Move], size: int) -> Bytes:
    """Return blocks (n, bytes) as (n, size), with bits moved as planned."""
    result = np.zeros((len(blocks), size), np.uint8)
    for move in plan:
        part = np.take(blocks, move.source, axis=1)
        if move.mask < 255:
            part >>= move.down
            part &= move.mask
            part <<= move.up
            part |= result[:, move.target]
        result[:, move.target] = part
    return result
