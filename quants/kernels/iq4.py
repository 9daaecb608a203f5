"""What IQ4_NL and IQ4_XS share: sixteen levels, closer together near zero, and the search for a scale to them."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from .jit import inlined
from .lane_memory import load, lookup, store
from .lanes import LANES, Lanes, absolute, every, every_int, larger, smaller, to_float, where

CODED = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)
LEVELS = tuple(np.float32(v) for v in CODED)
# From the middle between two levels on, the upper one is taken.
MIDDLES = tuple((a + b) / np.float32(2) for a, b in itertools.pairwise(LEVELS))
GROUP = 32
ZERO_BELOW = np.float32(1e-15)
TRIES = 7  # scales on either side of the one that maps the extreme to the lowest level


@inlined
def nearest_code(x: Lanes) -> Lanes:
    """Number of the nearest level, as i32x16."""
    code = every_int(0)
    for k in range(15):
        code = where(x >= MIDDLES[k], every_int(k + 1), code)
    return code


@inlined
def _nearest_level(x: Lanes) -> Lanes:
    level = every(LEVELS[0])
    for k in range(15):
        level = where(x >= MIDDLES[k], every(LEVELS[k + 1]), level)
    return level


@inlined
def best_scale(x: NDArray[np.float32], at: int, weights: NDArray[np.float32], crossings: NDArray[np.float32]) -> Lanes:
    """The scale of least weighted square error among those tried, for a group of 32 values a lane; 0 for a zero group.

    x, weights: the lanes' values from at on. crossings: scratch of 5 * 512.

    Over all tries |inverse scale| grows by 134 / 120, less than the ratio of any two neighbouring middles: each value
    crosses one middle at most, so two products of each kind are all that its sums can ever need.
    """
    zero = every(np.float32(0))
    size, extreme = zero, zero
    for i in range(0, GROUP * LANES, LANES):
        v = load(x, at + i)
        more = absolute(v) > size
        size, extreme = where(more, absolute(v), size), where(more, v, extreme)
    inverse = np.float32(1) / (-extreme / LEVELS[0])
    inward, outward = (LEVELS[0] + np.float32(TRIES)) / extreme, (LEVELS[0] - np.float32(TRIES)) / extreme
    sum_qx, sum_qq = zero, zero
    for i in range(0, GROUP * LANES, LANES):
        v, w = load(x, at + i), load(weights, at + i)
        q = _nearest_level(inverse * v)
        sum_qx, sum_qq = sum_qx + w * q * v, sum_qq + w * q * q
        low, high = smaller(inward * v, outward * v), larger(inward * v, outward * v)
        middle, above, below = every(MIDDLES[0]), every(LEVELS[0]), every(LEVELS[0])
        for k in range(15):
            over = high >= MIDDLES[k]
            middle = where(over, every(MIDDLES[k]), middle)
            below = where(over, every(LEVELS[k]), below)
            above = where(over, every(LEVELS[k + 1]), above)
        below = where(low >= middle, above, below)
        store(crossings, 5 * i, middle)
        store(crossings, 5 * i + LANES, w * above * v)
        store(crossings, 5 * i + 2 * LANES, w * below * v)
        store(crossings, 5 * i + 3 * LANES, w * above * above)
        store(crossings, 5 * i + 4 * LANES, w * below * below)
    scale = where(sum_qq > zero, sum_qx / sum_qq, zero)
    best = scale * sum_qx
    for k in range(-TRIES, TRIES + 1, 3):
        inverse_a = (LEVELS[0] + np.float32(k)) / extreme
        inverse_b, inverse_c = (LEVELS[0] + np.float32(k + 1)) / extreme, (LEVELS[0] + np.float32(k + 2)) / extreme
        qx_a, qq_a, qx_b, qq_b, qx_c, qq_c = zero, zero, zero, zero, zero, zero
        for i in range(0, GROUP * LANES, LANES):
            v, middle = load(x, at + i), load(crossings, 5 * i)
            above_qx, below_qx = load(crossings, 5 * i + LANES), load(crossings, 5 * i + 2 * LANES)
            above_qq, below_qq = load(crossings, 5 * i + 3 * LANES), load(crossings, 5 * i + 4 * LANES)
            over_a, over_b, over_c = inverse_a * v >= middle, inverse_b * v >= middle, inverse_c * v >= middle
            qx_a, qq_a = qx_a + where(over_a, above_qx, below_qx), qq_a + where(over_a, above_qq, below_qq)
            qx_b, qq_b = qx_b + where(over_b, above_qx, below_qx), qq_b + where(over_b, above_qq, below_qq)
            qx_c, qq_c = qx_c + where(over_c, above_qx, below_qx), qq_c + where(over_c, above_qq, below_qq)
        scale, best = _better(scale, best, qx_a, qq_a)
        scale, best = _better(scale, best, qx_b, qq_b)
        scale, best = _better(scale, best, qx_c, qq_c)
    return where(size < ZERO_BELOW, zero, scale)


@inlined
def _better(scale: Lanes, best: Lanes, sum_qx: Lanes, sum_qq: Lanes) -> tuple[Lanes, Lanes]:
    """Scale and gain of these sums where they gain more than `best`."""
    win = (sum_qq > np.float32(0)) & (sum_qx * sum_qx > best * sum_qq)
    tried = sum_qx / sum_qq
    return where(win, tried, scale), where(win, tried * sum_qx, best)


@inlined
def group_codes(x: NDArray[np.float32], at: int, inverse: Lanes, codes: NDArray[np.int32]) -> None:
    """Sixteen bytes a lane: value i in the low half of byte i, value 16 + i in the high half."""
    for i in range(0, LANES * LANES, LANES):
        low, high = load(x, at + i), load(x, at + LANES * LANES + i)
        store(codes, i, nearest_code(inverse * low) | (nearest_code(inverse * high) << 4))


@inlined
def expand_group(
    raw: NDArray[np.uint8], at: int, d: np.float32, coded: NDArray[np.int8], values: NDArray[np.float32], to: int
) -> None:
    """The 32 values of sixteen bytes."""
    codes = load(raw, at)
    store(values, to, to_float(lookup(coded, 0, codes & 15)) * d)
    store(values, to + LANES, to_float(lookup(coded, 0, codes >> 4)) * d)
