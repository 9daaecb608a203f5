"""Sums of softmax, and log-probabilities of the tokens that a model should have predicted."""

from functools import partial

import numpy as np

from quants.kernels.jit import inlined
from quants.kernels.numba_internals import njit

from .exponential import LOWEST, ONE, SHORT, ZERO, exp, largest, nearest, sum_of_exp

f32 = np.float32


@njit(cache=True, nogil=True)
def negative_log_likelihoods(logits, targets, out, start, stop):  # type: ignore[no-untyped-def]
    """Compute out[r] = log(sum(e^logits[r])) - logits[r, targets[r]], float64."""
    for r in range(start, stop):
        top = largest(logits[r])
        out[r] = np.log(sum_of_exp(logits[r], top)) + np.float64(top) - np.float64(logits[r, targets[r]])


@njit(cache=True, nogil=True)
def fold_tile(logits, targets, first, state):  # type: ignore[no-untyped-def]
    """Fold the logits of tokens first, first + 1, … into state (rows, 3), float64.

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


@inlined
def sum_and_weighted(row, top):  # type: ignore[no-untyped-def]
    """Return the sums of e^x and of e^x * x, x = row - top: float32 over SHORT values, then float64."""
    total, weighted = 0.0, 0.0
    for i in range(0, row.size, SHORT):
        short, short_weighted = short_sum_and_weighted(row[i : i + SHORT], top)
        total += np.float64(short)
        weighted += np.float64(short_weighted)
    return total, weighted


@partial(inlined, fastmath={"reassoc"})
def short_sum_and_weighted(row, top):  # type: ignore[no-untyped-def]
    total, weighted = ZERO, ZERO
    for i in range(row.size):
        x = row[i] - top
        e = exp(x)  # 1e-38 below LOWEST, where a barred token's x is -3e38
        total += e
        weighted += e * (LOWEST if x < LOWEST else x)
    return total, weighted


@njit(cache=True, nogil=True)
def row_figures(logits, targets, out, start, stop):  # type: ignore[no-untyped-def]
    """Compute out[r], float64: log(sum(e^logits[r])), entropy in nats, first largest token, its logit, log-probability
    of the target.
    """
    for r in range(start, stop):
        top = largest(logits[r])
        first = 0
        while first < logits.shape[1] - 1 and logits[r, first] != top:
            first += 1
        total, weighted = sum_and_weighted(logits[r], top)
        z = np.log(total)
        out[r, 0] = z + np.float64(top)
        out[r, 1] = z - weighted / total
        out[r, 2] = first
        out[r, 3] = np.float64(top)
        out[r, 4] = np.float64(logits[r, targets[r]]) - out[r, 0]


SMALL = f32(0.5)
GAP = tuple(f32(1 / factorial) for factorial in (3628800, 362880, 40320, 5040, 720, 120, 24, 6, 2))


@partial(inlined, fastmath={"reassoc", "contract"})
def short_gaps(base, other, base_z, other_z):  # type: ignore[no-untyped-def]
    """Return over SHORT tokens, d = log p - log q: sums of p (d + e^-d - 1), of q (e^d - d - 1), of |p - q|."""
    forward, backward, apart = ZERO, ZERO, ZERO
    for i in range(base.size):
        b, o = np.float64(base[i]) - base_z, np.float64(other[i]) - other_z
        d = f32(b - o)  # rounded once: both differences are good to float64's accuracy
        p, q = exp(f32(b)), exp(f32(o))
        y = d * d  # e^x - x - 1 = x² (1/2 + x/6 + …), for x = -d and for x = d: even and odd terms apart
        even = (((GAP[0] * y + GAP[2]) * y + GAP[4]) * y + GAP[6]) * y + GAP[8]
        odd = (((GAP[1] * y + GAP[3]) * y + GAP[5]) * y + GAP[7]) * d
        near = -SMALL < d < SMALL
        forward += p * (y * (even - odd)) if near else p * (d - ONE) + q
        backward += q * (y * (even + odd)) if near else p - q * (d + ONE)
        gap = p - q
        apart += gap if gap > ZERO else -gap
    return forward, backward, apart


@njit(cache=True, nogil=True)
def divergences(base, other, base_z, other_z, out, start, stop):  # type: ignore[no-untyped-def]
    """Compute out[r], float64: KL(base ‖ other), KL(other ‖ base), total variation of two rows of logits.

    base_z, other_z: log of each row's sum of e^logits, float64. KL is the mean of d = log p - log q under p; that of
    e^-d is 1, so d + e^-d - 1 has the same mean. No term of it is negative and each is about d²/2: rounding errors do
    not add up to more than the divergence of two near models.
    """
    for r in range(start, stop):
        forward, backward, apart = 0.0, 0.0, 0.0
        for i in range(0, base.shape[1], SHORT):
            short = short_gaps(base[r, i : i + SHORT], other[r, i : i + SHORT], base_z[r], other_z[r])
            forward += np.float64(short[0])
            backward += np.float64(short[1])
            apart += np.float64(short[2])
        out[r, 0] = forward
        out[r, 1] = backward
        out[r, 2] = 0.5 * apart


MIN_LOG_P = f32(-16)  # of the log-probabilities that llama.cpp counts


@partial(inlined, fastmath={"reassoc"})
def short_stored_gap(base, other, z):  # type: ignore[no-untyped-def]
    total = 0.0
    for i in range(base.size):
        term = exp(base[i]) * (base[i] - other[i] + z)
        total += np.float64(term) if base[i] > MIN_LOG_P else 0.0
    return total


@njit(cache=True, nogil=True)
def stored_divergences(base, other, other_z, out, start, stop):  # type: ignore[no-untyped-def]
    """Compute out[r]: KL(base ‖ other) as llama.cpp sums it over its stored log-probabilities, float32, that add up to
    about 1.

    other_z: of each row of logits, log of its sum of e^logits, float32.
    """
    for r in range(start, stop):
        total = 0.0
        for i in range(0, base.shape[1], SHORT):
            total += short_stored_gap(base[r, i : i + SHORT], other[r, i : i + SHORT], other_z[r])
        out[r] = total


@njit(cache=True, nogil=True)
def store_rows(logits, words, start, stop):  # type: ignore[no-untyped-def]
    """Encode words[r], uint16: a row of logits as llama.cpp stores it, after the scale and the minimum as float32."""
    for r in range(start, stop):
        row = logits[r]
        top, lowest = row[0], row[0]
        for i in range(row.size):
            top = max(top, row[i])
            lowest = min(lowest, row[i])
        lowest = max(lowest, top - f32(16))
        z = f32(np.log(sum_of_exp(row, top)))
        head = words[r, :4].view(np.float32)
        scale = (top - lowest) / f32(65535)
        head[0] = scale
        head[1] = lowest - top - z
        inverse = ONE / scale if scale != ZERO else ZERO
        for i in range(row.size):
            words[r, 4 + i] = np.uint16(nearest(inverse * (row[i] - lowest))) if row[i] > lowest else np.uint16(0)
        for i in range(4 + row.size, words.shape[1]):
            words[r, i] = np.uint16(0)


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
