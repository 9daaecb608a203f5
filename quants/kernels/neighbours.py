"""Search tables of the IQ formats: for every combination of levels, the grid points that an encoder may choose for
it.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from .grids import grid_levels
from .jit import kernel
from .lanes import LANES

ROWS = 128  # combinations at a time, so that their data stays in the cache


@dataclass(frozen=True)
class Neighbours:
    """Lists of grid points, found by the number of a combination of levels.

    The number's digits to base 3 (8 values) or 8 (4 values) are the levels, the first value's lowest. A point's code
    has 2 or 3 bits a level, the first value's lowest.
    entries: int32 (combinations, 4). On the grid: index << 16 | code, 0, 0, 0. Off the grid: start and length of its
    list, start and length of its short list: without points that change more than another one of the list does. Where
    each level is the nearest one to its value, no such point can be the first one of the smallest error.
    codes, indexes: uint16, the lists, each padded to a multiple of 16; by distance, then by index. A list of up to 8 is
    there twice, from its start and from 8 places later.
    """

    entries: NDArray[np.int32]
    codes: NDArray[np.uint16]
    indexes: NDArray[np.uint16]


@cache
def neighbours(name: str, distances: int) -> Neighbours:
    """Return tables of the grid of the format `name`: lists of all points at the `distances` smallest distances that
    occur.
    """
    levels = grid_levels(name)
    radix = 3 if levels.shape[1] == 8 else 8
    squares = _square_distances(levels, radix)
    parts = [_listed(squares, first, distances) for first in range(0, len(squares), ROWS)]
    numbers, points = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    steps = _steps(levels, radix, numbers, points)
    kept = np.zeros(len(numbers), np.bool_)
    _keep(np.flatnonzero(np.diff(numbers, prepend=-1, append=-1)), steps, kept)

    bits = np.arange(levels.shape[1]) * (2 if radix == 3 else 3)
    point_codes = (levels.astype(np.int32) << bits).sum(1).astype(np.uint16)
    entries = np.zeros((len(squares), 4), np.int32)
    on_grid, grid_points = np.nonzero(squares == 0)
    entries[on_grid, 0] = grid_points << 16 | point_codes[grid_points]
    full, places, listed = _laid_out(numbers, points, 0, entries[:, :2])
    end, short_places, short_listed = _laid_out(numbers[kept], points[kept], full, entries[:, 2:])
    indexes = np.zeros(end, np.uint16)
    indexes[places], indexes[short_places] = listed, short_listed
    codes = point_codes[indexes]

    for array in (entries, codes, indexes):
        array.flags.writeable = False
    return Neighbours(entries, codes, indexes)


def _square_distances(levels: NDArray[np.uint8], radix: int) -> NDArray[np.uint8]:
    """Return squared distances from each combination of levels to each point, (combinations, points). levels: (points,
    values).

    The first value is the combination's lowest digit.
    """
    digits = np.arange(radix, dtype=np.int16)[:, None]
    squares = np.zeros((1, len(levels)), np.uint8)
    for levels_of_value in levels.T.astype(np.int16):
        steps = ((levels_of_value - digits) ** 2).astype(np.uint8)
        squares = (steps[:, None] + squares).reshape(-1, len(levels))
    return squares


def _listed(squares: NDArray[np.uint8], first: int, distances: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the numbers of ROWS combinations off the grid, each repeated for its points, and these, in their list's
    order.
    """
    squares = squares[first : first + ROWS]
    farthest = squares.min(1)
    off_grid = farthest > 0
    for _ in range(distances - 1):
        farthest = np.where(squares > farthest[:, None], squares, np.uint8(255)).min(1)
    numbers, points = np.nonzero((squares <= farthest[:, None]) & off_grid[:, None])
    order = np.argsort((numbers << 8 | squares[numbers, points]).astype(np.uint16), kind="stable")
    return first + numbers, points[order]


def _steps(
    levels: NDArray[np.uint8], radix: int, numbers: NDArray[np.intp], points: NDArray[np.intp]
) -> NDArray[np.uint64]:
    """Return a bit for every level between a combination's level of a value and the point's, up or down."""
    there, here = np.meshgrid(np.arange(radix), np.arange(radix))
    up, down = np.maximum(there - here, 0), np.maximum(here - there, 0)
    between = ((1 << up) - 1 << (radix - 1) | (1 << down) - 1).astype(np.uint64)
    bits = np.zeros(len(numbers), np.uint64)
    for i, levels_of_value in enumerate(levels.T):
        bits = bits << np.uint64(2 * radix - 2) | between[numbers // radix**i % radix, levels_of_value[points]]
    return bits


@kernel
def _keep(bounds: NDArray[np.int64], steps: NDArray[np.uint64], kept: NDArray[np.bool_]) -> None:
    """Compute `kept`: whether no earlier point of the list has a subset of its steps. bounds: where lists start and
    end.
    """
    for i in range(len(bounds) - 1):
        for j in range(bounds[i], bounds[i + 1]):
            kept[j] = True
            for k in range(bounds[i], j):
                if steps[k] & ~steps[j] == 0:
                    kept[j] = False


def _laid_out(
    numbers: NDArray[np.intp], points: NDArray[np.intp], first: int, entries: NDArray[np.int32]
) -> tuple[int, NDArray[np.intp], NDArray[np.intp]]:
    """Return room for lists from `first` on: where it ends, places, and which points go there. Some go to two places.

    numbers: of each point's combination. entries: int32 (combinations, 2), gets where lists start, and their lengths.
    """
    lengths = np.bincount(numbers, minlength=len(entries))
    room = -(-lengths // LANES) * LANES
    starts = first + np.cumsum(room) - room
    entries[lengths > 0] = np.stack((starts, lengths), 1)[lengths > 0]
    places = np.arange(len(numbers)) + (starts - np.cumsum(lengths) + lengths)[numbers]
    short = lengths[numbers] <= LANES // 2
    both = np.concatenate((places, places[short] + LANES // 2))
    return int(first + room.sum()), both, np.concatenate((points, points[short]))
