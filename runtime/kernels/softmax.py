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


@njit(cache=True, nogil=True, fastmath={"reassoc"})
def weighted_gap(base, other, top, shift):  # type: ignore[no-untyped-def]
    """Sum of e^(base - top) * (d + e^-d - 1) with d = base - other - shift, float64."""
    total = 0.0
    for i in range(base.size):
        d = np.float64(base[i]) - np.float64(other[i]) - shift
        total += np.float64(exp(base[i] - top)) * (d + (np.exp(-d) - 1.0))
    return total


@njit(cache=True, nogil=True)
def divergences(base, other, targets, out, start, stop):  # type: ignore[no-untyped-def]
    """out[r]: KL(base ‖ other), log-probabilities of the target under base and under other, 1 if both favour the same.

    KL is the mean of d = log p - log q under p; that of e^-d is 1, so d + e^-d - 1 has the same mean. No term of it is
    negative and each is about d²/2: rounding errors do not add up to more than the divergence of two near models.
    """
    for r in range(start, stop):
        base_top, other_top = largest(base[r]), largest(other[r])
        base_sum = sum_of_exp(base[r], base_top)
        base_z = np.log(base_sum) + np.float64(base_top)
        other_z = np.log(sum_of_exp(other[r], other_top)) + np.float64(other_top)
        out[r, 0] = weighted_gap(base[r], other[r], base_top, base_z - other_z) / base_sum
        out[r, 1] = np.float64(base[r, targets[r]]) - base_z
        out[r, 2] = np.float64(other[r, targets[r]]) - other_z
        out[r, 3] = 1.0 if np.argmax(base[r]) == np.argmax(other[r]) else 0.0
