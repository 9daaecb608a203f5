"""IQ4_NL and IQ4_XS: numbers of sixteen levels, closer together near zero; every 32 values have a scale.

The weight of an error: x * x, or importance * sqrt(2 * mean of the block's squares + x * x).
"""

import itertools

import numpy as np

from ..formats.iq4_nl import BLOCK as NL
from ..formats.iq4_xs import BLOCK as XS
from .blocks import (
    Bytes,
    Floats,
    Kernels,
    Memory,
    Offsets,
    Words,
    bytes_to_words,
    codec,
    field_offsets,
    load_blocks,
    load_half,
    load_importance,
    put_all,
    sum_of_squares,
    weigh,
    weigh_by_squares,
)
from .half import to_half
from .jit import inlined, kernel
from .lane_memory import load, lookup, put_halves, put_words, store
from .lanes import LANES, Lanes, every, every_int, larger, smaller, to_float, where
from .rounding import nearest_int
from .scales import ONE, ZERO, extreme

CODED = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)
LEVELS = tuple(np.float32(v) for v in CODED)
# Midpoints between levels: from there on the upper level is taken.
MIDDLES = tuple((a + b) / np.float32(2) for a, b in itertools.pairwise(LEVELS))
GROUP, GROUPS = 32, 8
NL_BYTES, (_, NL_QS) = NL.itemsize, field_offsets(NL)
XS_BYTES, (_, SCALES_H, SCALES_L, XS_QS) = XS.itemsize, field_offsets(XS)
ZERO_BELOW = np.float32(1e-15)
TRIES = 7  # scales on either side of the one that maps the extreme to the lowest level


@inlined
def _nearest_code(x: Lanes) -> Lanes:
    """Return the number of the nearest level, as i32x16."""
    code = every_int(0)
    for k in range(15):
        code = where(x >= MIDDLES[k], every_int(k + 1), code)
    return code


@inlined
def _level(code: Lanes) -> Lanes:
    return to_float(lookup(CODED, 0, code))


@inlined
def _best_scale(x: Floats, at: int, weights: Floats, crossings: Floats) -> Lanes:
    """Return the scale with the smallest weighted square error among those tried, for a group of 32 values a lane; 0
    for a zero group.

    x, weights: the lanes' values from `at` on. crossings: scratch of 5 * 512. Over all tries |inverse scale| grows by
    134 / 120, less than the ratio of any two neighbouring midpoints: each value crosses at most one midpoint, so two
    products of each kind cover all sums.
    """
    zero = every(ZERO)
    signed, size = extreme(x, at, GROUP)
    inverse = ONE / (-signed / LEVELS[0])
    inward, outward = (LEVELS[0] + np.float32(TRIES)) / signed, (LEVELS[0] - np.float32(TRIES)) / signed
    sum_qx, sum_qq = zero, zero
    for i in range(0, GROUP * LANES, LANES):
        v, w = load(x, at + i), load(weights, at + i)
        q = _level(_nearest_code(inverse * v))
        sum_qx, sum_qq = sum_qx + w * q * v, sum_qq + w * q * q
        low, high = smaller(inward * v, outward * v), larger(inward * v, outward * v)
        code = _nearest_code(high)
        above, below = _level(code), _level(larger(code - 1, 0))
        middle = (above + below) / np.float32(2)
        below = where(low >= middle, above, below)
        store(crossings, 5 * i, middle)
        store(crossings, 5 * i + LANES, w * above * v)
        store(crossings, 5 * i + 2 * LANES, w * below * v)
        store(crossings, 5 * i + 3 * LANES, w * above * above)
        store(crossings, 5 * i + 4 * LANES, w * below * below)
    scale = where(sum_qq > zero, sum_qx / sum_qq, zero)
    best = scale * sum_qx
    for k in range(-TRIES, TRIES + 1, 3):
        inverse_a = (LEVELS[0] + np.float32(k)) / signed
        inverse_b, inverse_c = (LEVELS[0] + np.float32(k + 1)) / signed, (LEVELS[0] + np.float32(k + 2)) / signed
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
    """Return the scale and gain of these sums where they gain more than `best`."""
    win = (sum_qq > np.float32(0)) & (sum_qx * sum_qx > best * sum_qq)
    tried = sum_qx / sum_qq
    return where(win, tried, scale), where(win, tried * sum_qx, best)


@inlined
def _weigh(
    x: Floats, importance: Floats, first: int, count: int, starts: Offsets, side: Floats, weights: Floats
) -> None:
    if importance.size:
        load_importance(x, importance, first, count, starts, weights)
        weigh(side, weights, sum_of_squares(side, 0, count) * (np.float32(2) / np.float32(count)), count)
    else:
        weigh_by_squares(side, weights, count)


@inlined
def _put_group(x: Floats, at: int, d: Lanes, codes: Words, raw: Bytes, targets: Offsets, to: int) -> None:
    """Write sixteen bytes a lane: value i in the low half of byte i, value 16 + i in the high half."""
    inverse = where(d == ZERO, ZERO, ONE / d)
    for i in range(0, LANES * LANES, LANES):
        low, high = load(x, at + i), load(x, at + LANES * LANES + i)
        store(codes, i, _nearest_code(inverse * low) | (_nearest_code(inverse * high) << 4))
    bytes_to_words(codes, codes, LANES)
    put_all(raw, targets, to, codes, LANES // 4)


@inlined
def _expand_group(raw: Bytes, at: int, d: Lanes, values: Floats, to: int) -> None:
    """Decode sixteen bytes to 32 values."""
    codes = load(raw, at)
    store(values, to, _level(codes & 15) * d)
    store(values, to + LANES, _level(codes >> 4) * d)


@kernel
def _encode_iq4_nl(x: Floats, importance: Floats, memory: Memory, raw: Bytes) -> None:
    side, weights, targets = memory.x, memory.weights, memory.targets
    for first in range(0, x.size // GROUP, LANES):
        load_blocks(x, first, GROUP, NL_BYTES, memory)
        _weigh(x, importance, first, GROUP, memory.starts, side, weights)
        d = _best_scale(side, 0, weights, memory.scratch)
        put_halves(raw, targets, 0, to_half(d))
        _put_group(side, 0, d, memory.codes, raw, targets, NL_QS)


@kernel
def _decode_iq4_nl(raw: Bytes, values: Floats) -> None:
    for b in range(raw.size // NL_BYTES):
        at = NL_BYTES * b
        _expand_group(raw, at + NL_QS, load_half(raw, at), values, GROUP * b)


@kernel
def _encode_iq4_xs(x: Floats, importance: Floats, memory: Memory, raw: Bytes) -> None:
    side, weights, targets = memory.x, memory.weights, memory.targets
    values, scales = GROUP * GROUPS, memory.scales
    for first in range(0, x.size // values, LANES):
        load_blocks(x, first, values, XS_BYTES, memory)
        _weigh(x, importance, first, values, memory.starts, side, weights)
        for k in range(GROUPS):
            store(scales, LANES * k, _best_scale(side, LANES * GROUP * k, weights, memory.scratch))
        signed, _ = extreme(scales, 0, GROUPS)
        d = -signed / np.float32(32)
        inverse = where(d == ZERO, ZERO, ONE / d)
        low, high = every_int(0), every_int(0)
        for k in range(GROUPS):
            s = larger(every_int(-32), smaller(every_int(31), nearest_int(inverse * load(scales, LANES * k))))
            to = XS_QS + GROUP // 2 * k
            _put_group(side, LANES * GROUP * k, d * to_float(s), memory.codes, raw, targets, to)
            low |= ((s + 32) & 15) << (4 * k)
            high |= ((s + 32) >> 4) << (2 * k)
        put_halves(raw, targets, 0, to_half(d))
        put_halves(raw, targets, SCALES_H, high)
        put_words(raw, targets, SCALES_L, low)


@kernel
def _decode_iq4_xs(raw: Bytes, values: Floats) -> None:
    for b in range(raw.size // XS_BYTES):
        at = XS_BYTES * b
        d = load_half(raw, at)
        for k in range(GROUPS):
            high = raw[at + SCALES_H + k // 4] >> (2 * (k % 4)) & 3
            s = np.int32(raw[at + SCALES_L + k // 2] >> (4 * (k % 2)) & 15 | high << 4)
            to = GROUP * (GROUPS * b + k)
            _expand_group(raw, at + XS_QS + GROUP // 2 * k, d * np.float32(s - 32), values, to)


KERNELS = {
    "IQ4_NL": Kernels(_encode_iq4_nl, _encode_iq4_nl, _decode_iq4_nl),
    "IQ4_XS": Kernels(_encode_iq4_xs, _encode_iq4_xs, _decode_iq4_xs),
}
encode, decode = codec(KERNELS)
