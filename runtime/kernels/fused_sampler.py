"""Sample among the likeliest tokens: the usual chain of samplers, compiled.

`runtime.sampling` defines the samplers, each a function of its own. Here they are again for the most common case, where
Python would take as long as a small model does.
"""

import numpy as np

from quants.kernels.jit import inlined, kernel
from quants.kernels.lane_memory import load
from quants.kernels.lanes import LANES, every, lowest_bit, mask_bits

f32 = np.float32
TOP_K, TOP_P, MIN_P, TEMPERATURE = range(4)  # steps


@inlined
def _put(token, logit, count, ids, values):  # type: ignore[no-untyped-def]
    """Insert a token among `count` in descending order, after equal ones; the last one is dropped if there is no room.

    Returns the new count.
    """
    at = min(count, values.size - 1)
    while at > 0 and values[at - 1] < logit:
        ids[at], values[at] = ids[at - 1], values[at - 1]
        at -= 1
    ids[at], values[at] = token, logit
    return min(count + 1, values.size)


@inlined
def _exponentials(values, count, weights):  # type: ignore[no-untyped-def]
    """Compute weights = e^(values - the first); return their sum."""
    total = 0.0
    for i in range(count):
        weights[i] = np.exp(np.float64(values[i]) - np.float64(values[0]))
        total += weights[i]
    return total


@inlined
def _needed(weights, count, share):  # type: ignore[no-untyped-def]
    """Return how many are needed for a share of their sum, which is one; all if rounding leaves it out of reach."""
    so_far = 0.0
    for i in range(count):
        so_far += weights[i]
        if f32(so_far) >= share:
            return i + 1
    return count


@inlined
def _kept(step, number, min_keep, count, values, weights):  # type: ignore[no-untyped-def]
    """Return how many of the tokens a sampler keeps; temperature changes their values."""
    if step == TOP_K:
        return min(count, np.int64(number))
    if step == TOP_P:
        total = _exponentials(values, count, weights)
        for i in range(count):
            weights[i] /= total
        return min(max(_needed(weights, count, f32(number)), min_keep), count)
    if step == MIN_P:
        lowest, likely = values[0] + f32(np.log(f32(number))), 0
        while likely < count and values[likely] >= lowest:
            likely += 1
        return min(max(likely, min_keep, 1), count)
    if step == TEMPERATURE:
        if not np.isfinite(values[0] / f32(number)):
            return 1
        for i in range(count):
            values[i] /= f32(number)
    return count


@inlined
def _left(logits, steps, numbers, min_keep, ids, values, weights):  # type: ignore[no-untyped-def]
    """Return how many tokens the chain keeps, and the sum of their weights, the first's being 1; -1 as `draw`, and
    0.
    """
    count, bar, size = 0, f32(-np.inf), logits.size // LANES * LANES
    for i in range(0, logits.size, LANES):
        bits = mask_bits(~(load(logits, i) <= every(bar))) if i < size else (1 << (logits.size - size)) - 1
        while bits:
            at = i + lowest_bit(np.int32(bits))
            bits &= bits - 1
            logit = logits[at]
            if logit != logit or logit == f32(np.inf):
                return -1, 0.0
            if logit > bar:
                count = _put(at, logit, count, ids, values)
                if count == values.size:
                    bar = values[count - 1]
    if count == 0:
        return -1, 0.0
    for s in range(steps.size):
        count = _kept(steps[s], numbers[s], min_keep, count, values, weights)
    return count, _exponentials(values, count, weights)


@kernel
def draw(logits, steps, numbers, min_keep, uniform, ids, values, weights):  # type: ignore[no-untyped-def]
    """Return a token; -1 if a logit is NaN or infinite, or none can be sampled.

    logits: float32. steps: int64, which samplers, with their numbers, float64. uniform: from 0 to 1. ids (int64),
    values (float32), weights (float64): scratch for as many as the first top-k keeps, which is not among the steps.
    """
    count, total = _left(logits, steps, numbers, min_keep, ids, values, weights)
    if count < 0:
        return -1
    wanted, so_far = uniform * total, 0.0
    for i in range(count):
        so_far += weights[i]
        if so_far >= wanted:
            return ids[i]
    return ids[count - 1]


@kernel
def probabilities(logits, steps, numbers, min_keep, ids, values, weights):  # type: ignore[no-untyped-def]
    """Return how many tokens can be sampled: the first of ids, the likeliest first, with their probabilities in
    weights; -1 as `draw`. Arguments are as there.
    """
    count, total = _left(logits, steps, numbers, min_keep, ids, values, weights)
    while count > 1 and weights[count - 1] == 0:  # too unlikely for a float
        count -= 1
    for i in range(count):
        weights[i] /= total
    return count
