"""Rows of a matrix, selected by their numbers."""

from quants.kernels.numba_internals import njit


@njit(cache=True, nogil=True)
def add_rows(out, rows, values, start, stop):  # type: ignore[no-untyped-def]
    """Compute out[rows[i]] += values[i] for i from start to stop; no row comes twice."""
    for i in range(start, stop):
        r = rows[i]
        for c in range(out.shape[1]):
            out[r, c] += values[i, c]
