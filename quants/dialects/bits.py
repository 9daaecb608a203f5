"""Where the bits of a block are: layouts as arrays of bit numbers, from which blocks are taken apart and put together.

Bits count from the first byte's lowest. `block(2, 16)` gives the numbers of the bits of the first 2 and the next 16
bytes, (2, 8) and (16, 8); reshaping and transposing these says which bits make up which field. A field of a layout is
int32 (rows, count, bits): for each of the rows that are stored together, for each number, its bits, lowest first.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Labels = NDArray[np.int32]
Layout = Mapping[str, Labels]
Bytes = NDArray[np.uint8]
Fields = dict[str, NDArray[Any]]  # unsigned


def block(*sizes: int) -> list[Labels]:
    """Numbers of the bits of parts that follow each other: int32 (bytes of the part, 8) each."""
    every = np.arange(8 * sum(sizes), dtype=np.int32).reshape(-1, 8)
    return np.split(every, np.cumsum(sizes)[:-1])


def placed(labels: Labels, shape: tuple[int, ...], order: tuple[int, ...], bits: int, rows: int = 1) -> Labels:
    """Labels seen in `shape`, its axes put in `order`, as a field (rows, count, bits)."""
    return np.transpose(labels.reshape(shape), order).reshape(rows, -1, bits)


def joined(*parts: Labels) -> Labels:
    """A field whose numbers have the bits of several, lowest first."""
    return np.concatenate(parts, axis=-1)


def _runs(labels: Labels) -> Iterator[tuple[int, int]]:
    """Which bits of all numbers lie side by side in a byte: the first, and how many."""
    start, width = 0, labels.shape[-1]
    for end in range(1, width + 1):
        goes_on = end < width and bool(
            (labels[..., end] == labels[..., end - 1] + 1).all() and (labels[..., end] % 8 > 0).all()
        )
        if not goes_on:
            yield start, end - start
            start = end


def take_apart(blocks: Bytes, labels: Labels) -> NDArray[Any]:
    """One field's numbers in each of the blocks (n, bytes): unsigned (n, rows, count)."""
    rows, count, width = labels.shape
    kind = np.dtype(np.uint8 if width <= 8 else np.uint16 if width <= 16 else np.uint32)
    found = np.zeros((len(blocks), rows * count), kind)
    for low, length in _runs(labels):
        byte, shift = np.divmod(labels[..., low].reshape(-1), 8)
        part = np.take(blocks, byte, axis=1)
        part >>= shift.astype(np.uint8)
        part &= np.uint8((1 << length) - 1)
        found |= np.left_shift(part, low, dtype=kind)
    return found.reshape(len(blocks), rows, count)


def put_together(fields: Fields, layout: Layout, block_bytes: int) -> Bytes:
    """The blocks (n, bytes) that have those numbers, (n, count) of each field, by a layout of one row."""
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
