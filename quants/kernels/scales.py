"""The scale searches of the legacy and K formats: sixteen blocks at a time, in the operation order of ggml's reference.

Each works on `count` values a lane: value i of all lanes is at [at + 16 * i]. Searches return what gives the codes
(an inverse scale), and the scale; the codes themselves are computed once, when a search is over.
"""

from __future__ import annotations

import numpy as np

from .blocks import Floats
from .lanes import LANES, Lanes, absolute, every, inlined, larger, load, round_even, smaller, where

ZERO, ONE, TENTH = np.float32(0), np.float32(1), np.float32(0.1)
NOTHING = np.float32(1e-15)  # groups with no larger value are zero


@inlined
def extreme(x: Floats, at: int, count: int) -> Lanes:
    """The first value of largest magnitude, with its sign, and that magnitude."""
    peak = every(ZERO)
    signed = peak
    for i in range(at, at + LANES * count, LANES):
        v = load(x, i)
        size = absolute(v)
        more = size > peak
        peak, signed = where(more, size, peak), where(more, v, signed)
    return signed, peak


@inlined
def span(x: Floats, at: int, count: int) -> Lanes:
    """The lowest and the highest value."""
    low = load(x, at)
    high = low
    for i in range(at + LANES, at + LANES * count, LANES):
        v = load(x, i)
        low, high = smaller(v, low), larger(v, high)
    return low, high


@inlined
def signed_codes(v: Lanes, inverse: Lanes, top: np.float32) -> Lanes:
    """Whole numbers -top … top - 1, as float."""
    return larger(smaller(round_even(inverse * v), top - ONE), -top)


@inlined
def signed_scale(x: Floats, weights: Floats, at: int, count: int, top: np.float32) -> Lanes:
    """The best scale for codes -top … top - 1 of 19 around extreme / -top: scale and inverse scale.

    Both 0 where all values are below 1e-15, the scale 0 where all weights are.
    """
    signed, peak = extreme(x, at, count)
    inverse = -top / signed
    sum_lx, sum_ll = every(ZERO), every(ZERO)
    for i in range(at, at + LANES * count, LANES):
        v, w = load(x, i), load(weights, i)
        code = signed_codes(v, inverse, top)
        sum_lx += w * v * code
        sum_ll += w * code * code
    scale = where(sum_ll == ZERO, ZERO, sum_lx / sum_ll)
    best, best_inverse = scale * sum_lx, inverse
    for step in range(-9, 10):
        if step == 0:
            continue
        inverse = -(top + TENTH * np.float32(step)) / signed
        sum_lx, sum_ll = every(ZERO), every(ZERO)
        for i in range(at, at + LANES * count, LANES):
            v, w = load(x, i), load(weights, i)
            code = signed_codes(v, inverse, top)
            sum_lx += w * v * code
            sum_ll += w * code * code
        better = (sum_ll > ZERO) & (sum_lx * sum_lx > best * sum_ll)
        scale = where(better, sum_lx / sum_ll, scale)
        best = where(better, scale * sum_lx, best)
        best_inverse = where(better, inverse, best_inverse)
    empty = peak < NOTHING
    return where(empty, ZERO, scale), where(empty, ZERO, best_inverse)


@inlined
def offset_codes(v: Lanes, low: Lanes, inverse: Lanes, top: np.float32) -> Lanes:
    """Whole numbers 0 … top, as float."""
    return larger(smaller(round_even(inverse * (v - low)), top), ZERO)


@inlined
def scale_and_minimum(
    x: Floats, weights: Floats, at: int, count: int, top: np.float32, first: np.float32, step: np.float32,
    steps: int, absolute_error: bool,
) -> Lanes:  # fmt: skip
    """The best of `steps` + 1 scales with its minimum: value = scale * code - minimum, codes 0 … top.

    Tries inverse scales (first + step * k + top) / spread, each from the lowest value that the best so far gave. Returns
    scale, minimum, and for the codes that lowest value and the inverse scale; scale and inverse 0 where all values are
    equal. Errors weigh squared, or as they are.
    """
    low = load(x, at)
    high, sum_w = low, load(weights, at)
    sum_x = sum_w * low
    for i in range(at + LANES, at + LANES * count, LANES):
        v, w = load(x, i), load(weights, i)
        low, high = smaller(v, low), larger(v, high)
        sum_w += w
        sum_x += w * v
    low = where(low > ZERO, ZERO, low)
    empty = ~(high > low)
    inverse = top / (high - low)
    scale, minimum = ONE / inverse, low
    best = every(ZERO)
    for i in range(at, at + LANES * count, LANES):
        v, w = load(x, i), load(weights, i)
        error = scale * offset_codes(v, low, inverse, top) + minimum - v
        best += w * (absolute(error) if absolute_error else error * error)
    best_inverse = inverse
    for k in range(steps + 1):
        inverse = (first + step * np.float32(k) + top) / (high - minimum)
        sum_l, sum_ll, sum_xl = every(ZERO), every(ZERO), every(ZERO)
        for i in range(at, at + LANES * count, LANES):
            v, w = load(x, i), load(weights, i)
            code = offset_codes(v, minimum, inverse, top)
            weighted = w * code
            sum_l += weighted
            sum_ll += weighted * code
            sum_xl += weighted * v
        determinant = sum_w * sum_ll - sum_l * sum_l
        new_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant
        new_minimum = (sum_ll * sum_x - sum_l * sum_xl) / determinant
        positive = new_minimum > ZERO
        new_scale, new_minimum = where(positive, sum_xl / sum_ll, new_scale), where(positive, ZERO, new_minimum)
        total = every(ZERO)
        for i in range(at, at + LANES * count, LANES):
            v, w = load(x, i), load(weights, i)
            error = new_scale * offset_codes(v, minimum, inverse, top) + new_minimum - v
            total += w * (absolute(error) if absolute_error else error * error)
        better = (determinant > ZERO) & (total < best)
        best = where(better, total, best)
        best_inverse, low = where(better, inverse, best_inverse), where(better, minimum, low)
        scale, minimum = where(better, new_scale, scale), where(better, new_minimum, minimum)
    return where(empty, ZERO, scale), -minimum, low, where(empty, ZERO, best_inverse)
