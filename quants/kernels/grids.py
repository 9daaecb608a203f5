"""The point sets of the IQ formats: which combinations of levels a group of 4 or 8 values may take.

They come from the `gguf` package. A point is kept by its level numbers (0, 1, 2 or 0 … 7), in the order of the indexes
that files store.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from .lanes import inlined


@cache
def grid_values(name: str) -> NDArray[np.int8]:
    """What the points of the format `name` mean: int8 (points, 8 or 4), read-only."""
    import gguf.quants  # slow to import, and only these formats need it

    form = getattr(gguf.quants, name)
    form.init_grid()
    values = np.ascontiguousarray(form.grid.reshape(form.grid_shape).astype(np.int8))
    values.flags.writeable = False
    return values


@cache
def grid_levels(name: str) -> NDArray[np.uint8]:
    """The points of the format `name` as level numbers: uint8 (points, 8 or 4), read-only."""
    values = grid_values(name)
    levels = np.searchsorted(np.unique(values), values).astype(np.uint8)
    levels.flags.writeable = False
    return levels


def _signs(bits: NDArray[np.uint8]) -> NDArray[np.float32]:
    """1 or -1 for each of the eight bits, lowest first: float32 (n, 8)."""
    negative = bits[:, None] >> np.arange(8) & 1
    return 1 - 2 * negative.astype(np.float32)


SIGNS_OF_8 = _signs(np.arange(256, dtype=np.uint8))
# Seven bits are stored, the eighth makes the number of negative signs even.
SIGNS_OF_7 = np.ascontiguousarray(SIGNS_OF_8[[b | (b.bit_count() & 1) << 7 for b in range(128)]])


@inlined
def put_cell(
    values: NDArray[np.float32], at: int, d: np.float32, grid: NDArray[np.int8], index: int,
    signs: NDArray[np.float32], bits: int,
) -> None:  # fmt: skip
    """Eight values: d times a grid point times signs."""
    for i in range(8):
        values[at + i] = d * np.float32(grid[index, i]) * signs[bits, i]


@inlined
def put_half_cells(
    values: NDArray[np.float32], at: int, d: np.float32, grid: NDArray[np.int8], low: int, high: int,
    signs: NDArray[np.float32], bits: int,
) -> None:  # fmt: skip
    """Eight values: d times two grid points of four times signs."""
    for i in range(4):
        values[at + i] = d * np.float32(grid[low, i]) * signs[bits, i]
        values[at + 4 + i] = d * np.float32(grid[high, i]) * signs[bits, 4 + i]
