"""Softmax of attention scores, and log-probabilities of the tokens that a model should have predicted."""

from __future__ import annotations

import numpy as np
from numba import njit

from .exponential import ONE, exp, largest, sum_of_exp, tanh

f32 = np.float32


@njit(cache=True, nogil=True, error_model="numpy")
def attention_weights(scores, first, last, scale, cap, sink):  # type: ignore[no-untyped-def]
    """scores (rows, keys) → probabilities, in place; 0 outside the keys first[r] … last[r] - 1.

    cap: 0, or the bound c of c * tanh(score / c); sink[r]: a logit that takes probability and gives none (-inf: none).
    """
    inverse_cap = ONE / cap if cap > f32(0) else ONE
    for r in range(scores.shape[0]):
        row, seen = scores[r], scores[r, first[r] : last[r]]
        row[: first[r]] = f32(0)
        row[last[r] :] = f32(0)
        if seen.size == 0:
            continue
        if cap > f32(0):
            for i in range(seen.size):
                seen[i] = cap * tanh(seen[i] * scale * inverse_cap)
        elif scale != ONE:
            for i in range(seen.size):
                seen[i] = seen[i] * scale
        normalize(seen, sink[r])


@njit(cache=True, nogil=True, error_model="numpy")
def normalize(seen, sink):  # type: ignore[no-untyped-def]
    top = max(largest(seen), sink)
    for i in range(seen.size):
        seen[i] = exp(seen[i] - top)
    total = total_of(seen)
    if sink > -np.inf:
        total += np.float64(exp(sink - top))
    inverse = f32(1.0 / total)
    for i in range(seen.size):
        seen[i] = seen[i] * inverse


@njit(cache=True, nogil=True, fastmath={"reassoc"})
def total_of(row):  # type: ignore[no-untyped-def]
    total = 0.0
    for i in range(row.size):
        total += np.float64(row[i])
    return total


@njit(cache=True, nogil=True)
def negative_log_likelihoods(logits, targets, out, start, stop):  # type: ignore[no-untyped-def]
    """out[r] = log(sum(e^logits[r])) - logits[r, targets[r]], float64."""
    for r in range(start, stop):
        top = largest(logits[r])
        out[r] = np.log(sum_of_exp(logits[r], top)) + np.float64(top) - np.float64(logits[r, targets[r]])
