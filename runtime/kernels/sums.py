"""Sums of rows and of columns of a matrix."""

import numpy as np

from quants.kernels.numba_internals import njit


@njit(cache=True, nogil=True)
def add_rows(out, rows, values, start, stop):  # type: ignore[no-untyped-def]
    """Compute out[rows[i]] += values[i] for i from start to stop; no row comes twice."""
    for i in range(start, stop):
        r = rows[i]
        for c in range(out.shape[1]):
            out[r, c] += values[i, c]


@njit(cache=True, nogil=True, error_model="numpy")
def add_columns(x, start, stop, squares, inputs):  # type: ignore[no-untyped-def]
    """Add columns start … stop - 1 of x (n, width) and their squares to float64 (width,), one row after the other."""
    for r in range(x.shape[0]):
        for i in range(start, stop):
            value = np.float64(x[r, i])
            squares[i] += value * value
            inputs[i] += value
