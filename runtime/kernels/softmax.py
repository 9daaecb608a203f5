"""Sums of softmax, and log-probabilities of the tokens that a model should have predicted."""

from functools import partial

import numpy as np
from numba import njit

from quants.kernels.jit import inlined

from .exponential import SHORT, ZERO, exp, largest, sum_of_exp

f32 = np.float32


@partial(inlined, fastmath={"reassoc"})
def short_exp_and_sum(row, top):  # type: ignore[no-untyped-def]
    total = ZERO
    for i in range(row.size):
        row[i] = exp(row[i] - top)
        total += row[i]
    return total


@inlined
def exp_and_sum(row, top):  # type: ignore[no-untyped-def]
    """row = e^(row - top); their sum as in `sum_of_exp`."""
    total = 0.0
    for i in range(0, row.size, SHORT):
        total += np.float64(short_exp_and_sum(row[i : i + SHORT], top))
    return total


@njit(cache=True, nogil=True)
def negative_log_likelihoods(logits, targets, out, start, stop):  # type: ignore[no-untyped-def]
    """out[r] = log(sum(e^logits[r])) - logits[r, targets[r]], float64."""
    for r in range(start, stop):
        top = largest(logits[r])
        out[r] = np.log(sum_of_exp(logits[r], top)) + np.float64(top) - np.float64(logits[r, targets[r]])


@njit(cache=True, nogil=True)
def fold_tile(logits, targets, first, state):  # type: ignore[no-untyped-def]
    """Take the logits of tokens first, first + 1, … into state (rows, 3), float64.

    state[r]: the largest logit so far, the sum of e^(logit - largest), the logit of targets[r].
    """
    for r in range(logits.shape[0]):
        top, so_far = np.float64(largest(logits[r])), state[r, 0]
        if top > so_far:
            state[r, 0] = top
            state[r, 1] *= np.exp(so_far - top)
        state[r, 1] += sum_of_exp(logits[r], f32(state[r, 0]))
        column = targets[r] - first
        if 0 <= column < logits.shape[1]:
            state[r, 2] = np.float64(logits[r, column])


@partial(inlined, fastmath={"reassoc"})
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
