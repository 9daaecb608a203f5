"""Divergence from distributions of which only the likeliest tokens are known."""

import numpy as np

from quants.kernels.numba_internals import njit

from .exponential import largest, sum_of_exp

MIN_P = 1e-38  # replaces a probability too small for float32


@njit(cache=True, nogil=True)
def merged_divergences(ids, log_p, log_others, other, other_z, out, start, stop):  # type: ignore[no-untyped-def]
    """Compute out[r, 0], float64: KL(base ‖ other) with all tokens but ids[r] merged into one.

    log_p: float32 (n, k), the base's log-probabilities of ids; log_others: of all other tokens together. other: logits,
    other_z: log of each row's sum of e^logits, float64. As both sum to 1, p log(p / q) + q - p has the same sum as p
    log(p / q), and no negative terms. The merged part is summed separately: one minus the others would lose digits.
    """
    row = np.empty(other.shape[1], np.float32)
    for r in range(start, stop):
        row[:] = other[r]
        total = 0.0
        for i in range(ids.shape[1]):
            log_q = np.float64(row[ids[r, i]]) - other_z[r]
            d, p = np.float64(log_p[r, i]) - log_q, np.exp(np.float64(log_p[r, i]))
            total += p * (d + np.exp(-d) - 1.0)
            row[ids[r, i]] = -np.inf
        q = 0.0
        if ids.shape[1] < row.size:
            top = largest(row)
            q = sum_of_exp(row, top) * np.exp(np.float64(top) - other_z[r])
        p = np.exp(np.float64(log_others[r]))
        if p > 0.0:
            total += p * (np.float64(log_others[r]) - np.log(max(q, MIN_P)))
        out[r, 0] = max(0.0, total + q - p)
