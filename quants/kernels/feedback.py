"""Rounding a block's columns one after another, each column's error carried to those after it."""

import numpy as np
from numpy.typing import NDArray

from .jit import kernel

Floats = NDArray[np.float32]


@kernel
def round_columns(
    left: Floats, start: int, upper: Floats, table: Floats, group: int, lowest: int, even: bool,
    codes: NDArray[np.uint8], errors: Floats,
) -> None:  # fmt: skip
    """Choose the codes of columns start … start + codes.shape[1] of `left` (rows, width).

    left: the weights, corrected by what earlier columns lost; changed. upper (columns, columns): of the factor's rows
    and columns from `start` on, as far as errors are carried here. table (rows, groups, codes): what each code means;
    even: in equal steps. lowest: the first code that may be used. codes (rows, columns of the block): filled in.
    errors (rows, ≥ columns): filled in from column `start` of theirs, in units of the factor's diagonal.
    """
    count, carried = table.shape[2], upper.shape[1]
    top = count - 1
    for r in range(left.shape[0]):
        for j in range(codes.shape[1]):
            g, wanted, best = j // group, left[r, start + j], lowest
            if even:
                step = (table[r, g, top] - table[r, g, lowest]) / np.float32(top - lowest)
                if step != 0:
                    nearest = np.rint((wanted - table[r, g, lowest]) / step)
                    best = lowest + int(min(max(nearest, np.float32(0)), np.float32(top - lowest)))
            else:
                least = abs(wanted - table[r, g, lowest])
                for code in range(lowest + 1, count):
                    away = abs(wanted - table[r, g, code])
                    if away < least:
                        least, best = away, code
            codes[r, j] = best
            error = (wanted - table[r, g, best]) / upper[j, j]
            errors[r, start + j] = error
            for i in range(j + 1, carried):
                left[r, start + i] -= error * upper[j, i]
