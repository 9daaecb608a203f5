"""Rounding a block's columns one after another, each column's error carried to those after it."""

import numpy as np
from numpy.typing import NDArray

from .jit import kernel
from .lane_memory import load, store
from .lanes import LANES

Floats = NDArray[np.float32]


@kernel
def round_columns(
    left: Floats, rows: int, stride: int, start: int, upper: Floats, carried: int, table: Floats, count: int,
    group: int, columns: int, lowest: int, highest: int, even: bool, codes: NDArray[np.uint8], errors: Floats,
) -> None:  # fmt: skip
    """Choose the codes of `columns` columns of `left` from `start` on. All arrays are flat.

    left (rows, stride): the weights, corrected by what earlier columns lost; changed. upper (carried, carried): of the
    factor's rows and columns from `start` on, as far as errors are carried here, a multiple of LANES; what is left of
    its diagonal is 0. table (rows, columns / group, count): what each code means; even: in equal steps. lowest,
    highest: codes that may be used. codes (rows, columns): filled in. errors (rows, stride): filled in from column
    `start` on, in units of the factor's diagonal.
    """
    groups = columns // group
    for r in range(rows):
        own = r * stride + start
        for j in range(columns):
            meanings = (r * groups + j // group) * count
            wanted, best = left[own + j], lowest
            if even:
                least, most = table[meanings + lowest], table[meanings + highest]
                step = (most - least) / np.float32(highest - lowest)
                if step != 0:
                    nearest = np.rint((wanted - least) / step)
                    best = lowest + int(min(max(nearest, np.float32(0)), np.float32(highest - lowest)))
            else:
                near = abs(wanted - table[meanings + lowest])
                for code in range(lowest + 1, highest + 1):
                    away = abs(wanted - table[meanings + code])
                    if away < near:
                        near, best = away, code
            codes[r * columns + j] = best
            error = (wanted - table[meanings + best]) / upper[j * carried + j]
            errors[own + j] = error
            for i in range(j // LANES * LANES, carried, LANES):  # columns before j are done with
                store(left, own + i, load(left, own + i) - error * load(upper, j * carried + i))
