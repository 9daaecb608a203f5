"""Norms over the rows of a float32 matrix; sums in float64."""

from functools import partial

import numpy as np

from quants.kernels.jit import inlined
from quants.kernels.numba_internals import njit

f32 = np.float32


@partial(inlined, fastmath={"reassoc"})
def mean_of(row):  # type: ignore[no-untyped-def]
    total = 0.0
    for i in range(row.size):
        total += np.float64(row[i])
    return total / np.float64(row.size)


@partial(inlined, fastmath={"reassoc"})
def variance(row, mean):  # type: ignore[no-untyped-def]
    """Return the mean square of row - mean."""
    total = 0.0
    for i in range(row.size):
        off = np.float64(row[i]) - mean
        total += off * off
    return total / np.float64(row.size)


@njit(cache=True, nogil=True, error_model="numpy")
def rms_rows(x, weight, eps, out):  # type: ignore[no-untyped-def]
    for r in range(x.shape[0]):
        scale = f32(1.0 / np.sqrt(variance(x[r], 0.0) + eps))
        for i in range(x.shape[1]):
            out[r, i] = x[r, i] * scale * weight[i]


@njit(cache=True, nogil=True, error_model="numpy")
def layer_rows(x, weight, bias, eps, out):  # type: ignore[no-untyped-def]
    for r in range(x.shape[0]):
        mean = mean_of(x[r])
        scale, middle = f32(1.0 / np.sqrt(variance(x[r], mean) + eps)), f32(mean)
        for i in range(x.shape[1]):
            out[r, i] = (x[r, i] - middle) * scale * weight[i] + bias[i]
