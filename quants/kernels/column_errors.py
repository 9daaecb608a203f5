"""Errors of rows of values, column by column, in double precision."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .blocks import flat
from .jit import kernel

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]


class ColumnErrors(NamedTuple):
    """For each column the sums of the squared errors and of the squared reference values, float64 (width,).

    largest: largest error of all. non_finite: number of values that are NaN or infinite on one side or differ so; the
    sums leave them out.
    """

    squares: Doubles
    powers: Doubles
    largest: float
    non_finite: int


def column_errors(values: Floats, wanted: Floats) -> ColumnErrors:
    """Return the errors of float32 (rows, width) against reference values of the same shape, both C-contiguous.

    Equal infinities, and NaN on both sides, are no error; the sums leave them out.
    """
    errors = _sums(values, wanted)
    if np.isfinite(errors.squares.sum() + errors.powers.sum()):  # squares of float32 do not overflow
        return errors
    with np.errstate(invalid="ignore"):
        finite = np.isfinite(values) & np.isfinite(wanted)
        same = (values == wanted) | (np.isnan(values) & np.isnan(wanted))
    zero = np.float32(0)
    cleaned = _sums(np.where(finite, values, zero), np.where(finite, wanted, zero))
    return cleaned._replace(non_finite=int(np.count_nonzero(~finite & ~same)))


def _sums(values: Floats, wanted: Floats) -> ColumnErrors:
    sums = np.zeros((3, wanted.shape[1]))
    _add(flat(values), flat(wanted), *sums)
    return ColumnErrors(sums[0], sums[1], float(sums[2].max(initial=0.0)), 0)


@kernel
def _add(values: Floats, wanted: Floats, squares: Doubles, powers: Doubles, peaks: Doubles) -> None:
    width = squares.size
    for start in range(0, wanted.size, width):
        for i in range(width):  # a separate sum for each column, so that several are added to at once
            right = np.float64(wanted[start + i])
            error = np.float64(values[start + i]) - right
            squares[i] += error * error
            powers[i] += right * right
            peaks[i] = max(peaks[i], abs(error))
