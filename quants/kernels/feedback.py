"""Round a block's columns one after another; carry each column's error to those after it."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .blocks import Bytes, Floats
from .jit import inlined, kernel
from .lane_memory import load, store
from .lanes import LANES


@inlined
def _step(table: Floats, at: int, known: int, even: bool, lowest: int, highest: int) -> Any:
    """Return the distance between codes if their values are evenly spaced; else 0."""
    if not even or known < 2:
        return np.float32(0)
    return (table[at + 1] - table[at]) / np.float32(highest - lowest)


@inlined
def _nearest(
    wanted: np.float32, table: Floats, at: int, known: int, even: bool, step: np.float32, max_code: int
) -> int:
    """Return the nearest code to a value, counted from the lowest one."""
    best = 0
    if even:
        if step != 0:
            best = int(min(max(np.rint((wanted - table[at]) / step), np.float32(0)), np.float32(max_code)))
    else:
        near = abs(wanted - table[at])
        for code in range(1, known):
            away = abs(wanted - table[at + code])
            if away < near:
                near, best = away, code
    return best


@inlined
def _meaning(code: int, table: Floats, at: int, even: bool, step: np.float32) -> Any:
    return table[at] + step * np.float32(code) if even else table[at + code]


@inlined
def carry_error(left: Floats, at: int, upper: Floats, carried: int, column: int, error: np.float32) -> None:
    """Subtract what the rounding error of a column changes in the columns from it on; left: the row's, from `at` on."""
    for i in range(column // LANES * LANES, carried, LANES):  # columns before it are done
        store(left, at + i, load(left, at + i) - error * load(upper, column * carried + i))


@kernel
def round_columns(
    left: Floats,
    rows: int,
    stride: int,
    start: int,
    upper: Floats,
    carried: int,
    held_back: Floats,
    table: Floats,
    scales: int,
    known: int,
    group: int,
    columns: int,
    lowest: int,
    highest: int,
    even: bool,
    own: Floats,
    which: Bytes,
    codes: NDArray[np.uint8],
    errors: Floats,
) -> None:
    """Choose the scales and codes of `columns` columns of `left` from `start` on. All arrays are flat.

    left (rows, stride): the weights, corrected by what earlier columns lost; changed. upper (carried, carried): the
    factor's rows and columns from `start` on, a multiple of LANES, 0 below the diagonal. held_back (columns,): what a
    squared error adds to the cost of a scale. table (scales, rows, columns / group, known): the values of codes with
    each scale, for all codes or (even) only `lowest` and `highest`. own: room for a group's columns.
    Filled in: which (rows, columns / group), the scale; codes (rows, columns); errors (rows, stride), over the factor's
    diagonal.
    """
    groups, max_code = columns // group, highest - lowest
    for r in range(rows):
        for g in range(groups):
            begin, here, best, min_total = g * group, r * stride + start + g * group, 0, np.float32(np.inf)
            for scale in range(scales if scales > 1 else 0):
                at, total = ((scale * rows + r) * groups + g) * known, np.float32(0)
                step = _step(table, at, known, even, lowest, highest)
                for i in range(group):
                    own[i] = left[here + i]
                for i in range(group):
                    row = (begin + i) * carried + begin
                    value = _meaning(_nearest(own[i], table, at, known, even, step, max_code), table, at, even, step)
                    error, moved = (own[i] - value) / upper[row + i], left[here + i] - value
                    total += error * error + held_back[begin + i] * moved * moved
                    if not total < min_total:
                        break
                    for k in range(i + 1, group):
                        own[k] -= error * upper[row + k]
                if total < min_total:
                    min_total, best = total, scale
            which[r * groups + g] = best
            at = ((best * rows + r) * groups + g) * known
            step = _step(table, at, known, even, lowest, highest)
            for j in range(begin, begin + group):
                wanted = left[here - begin + j]
                code = _nearest(wanted, table, at, known, even, step, max_code)
                codes[r * columns + j] = lowest + code
                error = (wanted - _meaning(code, table, at, even, step)) / upper[j * carried + j]
                errors[here - begin + j] = error
                carry_error(left, here - begin, upper, carried, j, error)
