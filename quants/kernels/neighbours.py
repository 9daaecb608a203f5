"""Search tables of the IQ formats: for every combination of levels, the grid points that an encoder may take for it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .grids import grid_levels
from .jit import inlined, kernel
from .lanes import LANES


@dataclass(frozen=True)
class Neighbours:
    """Lists of grid points, found by the number of a combination of levels.

    The number's digits to base 3 (8 values) or 8 (4 values) are the levels, the first value's lowest. A point's code
    has 2 or 3 bits a level, the first value's lowest.
    entries: int32 (combinations, 4). On the grid: index << 16 | code, 0, 0, 0. Off the grid: start and length of its
    list, start and length of its short list: without points that change more than another one of the list does. Where
    each level is the nearest one to its value, no such point can be the first of least error.
    codes, indexes: uint16, the lists, each padded to a multiple of 16; by distance, then by index. A list of up to 8 is
    there twice, from its start and from 8 places later.
    """

    entries: NDArray[np.int32]
    codes: NDArray[np.uint16]
    indexes: NDArray[np.uint16]


@cache
def neighbours(name: str, distances: int) -> Neighbours:
    """Tables of the grid of the format `name`: lists of all points at the `distances` least distances that occur."""
    levels = grid_levels(name)
    radix = 3 if levels.shape[1] == 8 else 8
    squares = _square_distances(levels, radix)
    # Arrays come from here, not from kernels: numba compiles what makes them for a tenth of a second each.
    lengths, nearest = np.zeros(len(squares), np.int64), np.zeros(len(squares), np.int64)
    _list_lengths(squares, distances, np.zeros(256, np.int64), lengths, nearest)
    room = int((2 * (lengths + LANES)).sum())
    bits = np.arange(levels.shape[1]) * (2 if radix == 3 else 3)
    point_codes = (levels.astype(np.int32) << bits).sum(1).astype(np.uint16)
    entries = np.zeros((len(lengths), 4), np.int32)
    codes, indexes = (np.zeros(room, np.uint16) for _ in range(2))
    steps = np.zeros(lengths.max(), np.uint64)
    used = _fill(squares, lengths, nearest, levels, point_codes, radix, steps, entries, codes, indexes)
    tables = entries, codes[:used].copy(), indexes[:used].copy()
    for array in tables:
        array.flags.writeable = False
    return Neighbours(*tables)


def _square_distances(levels: NDArray[np.uint8], radix: int) -> NDArray[np.uint8]:
    """From each combination of levels to each point, (combinations, points). levels: (points, values).

    The first value is the combination's lowest digit.
    """
    digits = np.arange(radix, dtype=np.int16)[:, None]
    squares = np.zeros((1, len(levels)), np.uint8)
    for levels_of_value in levels.T.astype(np.int16):
        steps = ((levels_of_value - digits) ** 2).astype(np.uint8)
        squares = (steps[:, None] + squares).reshape(-1, len(levels))
    return squares


@kernel
def _list_lengths(
    squares: NDArray[np.uint8], distances: int, counts: NDArray[np.int64], lengths: NDArray[np.int64],
    nearest: NDArray[np.int64],
) -> None:  # fmt: skip
    """Number of points at the least `distances` distances from each combination; 0 if it is a point itself: `nearest`.

    counts: room for 256 zeros.
    """
    for number in range(len(squares)):
        for p in range(squares.shape[1]):
            counts[squares[number, p]] += 1
            if squares[number, p] == 0:
                nearest[number] = p
        found = distances if counts[0] == 0 else 0
        for square in range(256):
            if found > 0 and counts[square]:
                lengths[number] += counts[square]
                found -= 1
            counts[square] = 0


@inlined
def _steps(combination: int, levels: NDArray[np.uint8], point: int, radix: int) -> Any:
    """A bit (of a uint64) for every level between a combination's level of a value and the point's, up or down."""
    bits = np.uint64(0)
    for i in range(levels.shape[1]):
        level, other = combination % radix, np.int64(levels[point, i])
        combination //= radix
        up, down = max(other - level, 0), max(level - other, 0)
        bits = bits << np.uint64(2 * radix - 2) | np.uint64(((1 << up) - 1) << (radix - 1) | ((1 << down) - 1))
    return bits


@inlined
def _pad(codes: NDArray[np.uint16], indexes: NDArray[np.uint16], start: int, stop: int) -> Any:
    """Repeat a list of up to 8; result: where the next one may start."""
    if stop - start <= 8:
        for i in range(start, stop):
            codes[i + 8], indexes[i + 8] = codes[i], indexes[i]
    return -(-stop // LANES) * LANES


@kernel
def _fill(
    squares: NDArray[np.uint8], lengths: NDArray[np.int64], nearest: NDArray[np.int64], levels: NDArray[np.uint8],
    point_codes: NDArray[np.uint16], radix: int, steps: NDArray[np.uint64], entries: NDArray[np.int32],
    codes: NDArray[np.uint16], indexes: NDArray[np.uint16],
) -> int:  # fmt: skip
    """Write the lists; steps: room for one list. Result: elements used."""
    at: Any = np.int64(0)
    for number in range(len(squares)):
        length = lengths[number]
        if length == 0:
            index = nearest[number]
            entries[number, 0] = index << 16 | point_codes[index]
            continue
        start, square = at, 0
        while at < start + length:
            for p in range(squares.shape[1]):
                if squares[number, p] == square:
                    codes[at], indexes[at] = point_codes[p], p
                    steps[at - start] = _steps(number, levels, p, radix)
                    at += 1
            square += 1
        at = _pad(codes, indexes, start, at)
        short = at
        for j in range(length):
            kept = True
            for k in range(j):
                if steps[k] & ~steps[j] == 0:
                    kept = False
                    break
            if kept:
                codes[at], indexes[at] = codes[start + j], indexes[start + j]
                at += 1
        entries[number, 0], entries[number, 1] = start, length
        entries[number, 2], entries[number, 3] = short, at - short
        at = _pad(codes, indexes, short, at)
    return int(at)
