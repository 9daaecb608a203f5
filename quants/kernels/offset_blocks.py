"""Q4_1 and Q5_1: 32 codes under a scale, counted from the lowest value.

Codes of Q5_1 have a fifth bit, in the field `qh`, which Q4_1 lacks.
"""

from __future__ import annotations

import numpy as np

from ..format import Format
from .blocks import (
    Bytes,
    Floats,
    Offsets,
    Words,
    flat,
    load_codes,
    load_half,
    put_codes,
    raw_rows,
    sum_of_squares,
    value_rows,
    weigh_columns,
)
from .half import to_half
from .jit import Kernels, inlined, kernel, kernel_with_arrays
from .lane_memory import block_offsets, float_lanes, int_lanes, load, put_halves, store, transpose
from .lanes import LANES, Lanes, smaller, to_float, to_int, where
from .scales import ONE, ZERO, offset_codes, scale_and_minimum, span
from .wide_lanes import GROUPS, store_wide

BLOCK_VALUES = 32
HALF = np.float32(0.5)


def encode(form: Format, rows: Floats, importance: Floats | None) -> Bytes:
    """With importance weights the best of 38 scales, each with its minimum."""
    raw, kernels = raw_rows(form, rows), KERNELS[form.name]
    if importance is None:
        kernels.encode(flat(rows), raw.reshape(-1))
    else:
        kernels.weighted(flat(rows), flat(importance), raw.reshape(-1))
    return raw


def decode(form: Format, raw: Bytes) -> Floats:
    values = value_rows(form, raw)
    KERNELS[form.name].decode(flat(raw), values.reshape(-1))
    return values


@inlined
def _put(codes: Words, d: Lanes, m: Lanes, fifth: bool, raw: Bytes, targets: Offsets, at: int) -> None:
    put_halves(raw, targets, at, to_half(d))
    put_halves(raw, targets, at + 2, to_half(m))
    put_codes(codes, fifth, raw, targets, at + 4)


def _kernels(fifth: bool) -> Kernels:
    """The kernels of a format with fifth bits, or of one without; most: the greatest code."""
    block_bytes, most = (24, 31) if fifth else (20, 15)
    top = np.float32(most)

    @kernel_with_arrays
    def encode(x: Floats, raw: Bytes) -> None:
        count = x.size // BLOCK_VALUES
        starts, targets = np.empty(LANES, np.int64), np.empty(LANES, np.int64)
        side, codes = float_lanes(BLOCK_VALUES), int_lanes(BLOCK_VALUES)
        for first in range(0, count, LANES):
            block_offsets(first, count, BLOCK_VALUES, starts)
            block_offsets(first, count, block_bytes, targets)
            transpose(x, starts, BLOCK_VALUES, side)
            low, high = span(side, 0, BLOCK_VALUES)
            d = (high - low) / top
            inverse = where(d == ZERO, ZERO, ONE / d)
            for i in range(0, BLOCK_VALUES * LANES, LANES):
                code = to_int((load(side, i) - low) * inverse + HALF)
                store(codes, i, code if fifth else smaller(code, most))
            _put(codes, d, low, fifth, raw, targets, 0)

    @kernel_with_arrays
    def weighted(x: Floats, importance: Floats, raw: Bytes) -> None:
        """Sixteen rows side by side: weights count the mean square of the whole row."""
        width = importance.size
        count, per_row = x.size // width, width // BLOCK_VALUES
        starts, targets = np.empty(LANES, np.int64), np.empty(LANES, np.int64)
        side = float_lanes(BLOCK_VALUES * (per_row + GROUPS))  # the last values are no one's: they fill the last groups
        weights, scratch = float_lanes(GROUPS * BLOCK_VALUES), float_lanes(GROUPS * BLOCK_VALUES)
        scales, minima = float_lanes(GROUPS), float_lanes(GROUPS)
        lows, inverses = float_lanes(GROUPS), float_lanes(GROUPS)
        codes = int_lanes(BLOCK_VALUES)
        for first in range(0, count, LANES):
            block_offsets(first, count, width, starts)
            block_offsets(first, count, block_bytes * per_row, targets)
            transpose(x, starts, width, side)
            mean = sum_of_squares(side, 0, width) / np.float32(width)
            for b in range(0, per_row, GROUPS):
                group = side[LANES * BLOCK_VALUES * b :]
                weigh_columns(group, importance[BLOCK_VALUES * b : BLOCK_VALUES * (b + GROUPS)], mean, weights)
                scale, minimum, low, inverse = scale_and_minimum(
                    group, weights, 0, BLOCK_VALUES, top, np.float32(-0.9), np.float32(0.05), 36, False, scratch
                )
                store_wide(scales, 0, LANES, scale)
                store_wide(minima, 0, LANES, minimum)
                store_wide(lows, 0, LANES, low)
                store_wide(inverses, 0, LANES, inverse)
                for g in range(min(GROUPS, per_row - b)):
                    lowest, best = load(lows, LANES * g), load(inverses, LANES * g)
                    for i in range(0, BLOCK_VALUES * LANES, LANES):
                        code = offset_codes(load(group, LANES * BLOCK_VALUES * g + i), lowest, best, top)
                        store(codes, i, to_int(code))
                    m, at = -load(minima, LANES * g), block_bytes * (b + g)
                    _put(codes, load(scales, LANES * g), m, fifth, raw, targets, at)

    @kernel
    def decode(raw: Bytes, values: Floats) -> None:
        for b in range(values.size // BLOCK_VALUES):
            at, to = block_bytes * b, BLOCK_VALUES * b
            d, m = load_half(raw, at), load_half(raw, at + 2)
            low, high = load_codes(raw, at + 4, fifth)
            store(values, to, to_float(low) * d + m)
            store(values, to + LANES, to_float(high) * d + m)

    return Kernels(encode, weighted, decode)


KERNELS = {"Q4_1": _kernels(False), "Q5_1": _kernels(True)}
