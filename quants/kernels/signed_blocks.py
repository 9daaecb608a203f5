"""Q4_0 and Q5_0: 32 codes under one scale, the lowest of which stands for the value of largest magnitude.

Codes of Q5_0 have a fifth bit, in the field `qh`, which Q4_0 lacks.
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
from .scales import ONE, ZERO, extreme, signed_codes, signed_scale
from .wide_lanes import GROUPS, store_wide

BLOCK_VALUES = 32
HALF = np.float32(0.5)


def encode(form: Format, rows: Floats, importance: Floats | None) -> Bytes:
    """With importance weights the best of 19 scales."""
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
def _put(codes: Words, d: Lanes, fifth: bool, raw: Bytes, targets: Offsets, at: int) -> None:
    put_halves(raw, targets, at, to_half(d))
    put_codes(codes, fifth, raw, targets, at + 2)


def _kernels(fifth: bool) -> Kernels:
    """The kernels of a format with fifth bits, or of one without. Codes are -top … top - 1, stored with top added."""
    block_bytes, levels = (22, 16) if fifth else (18, 8)
    top = np.float32(levels)

    @kernel_with_arrays
    def encode(x: Floats, raw: Bytes) -> None:
        count = x.size // BLOCK_VALUES
        starts, targets = np.empty(LANES, np.int64), np.empty(LANES, np.int64)
        side, codes = float_lanes(BLOCK_VALUES), int_lanes(BLOCK_VALUES)
        for first in range(0, count, LANES):
            block_offsets(first, count, BLOCK_VALUES, starts)
            block_offsets(first, count, block_bytes, targets)
            transpose(x, starts, BLOCK_VALUES, side)
            signed, _ = extreme(side, 0, BLOCK_VALUES)
            d = signed / -top
            inverse = where(d == ZERO, ZERO, ONE / d)
            for i in range(0, BLOCK_VALUES * LANES, LANES):
                store(codes, i, smaller(to_int(load(side, i) * inverse + (top + HALF)), 2 * levels - 1))
            _put(codes, d, fifth, raw, targets, 0)

    @kernel_with_arrays
    def weighted(x: Floats, importance: Floats, raw: Bytes) -> None:
        """Sixteen rows side by side: weights count the mean square of the whole row."""
        width = importance.size
        count, per_row = x.size // width, width // BLOCK_VALUES
        starts, targets = np.empty(LANES, np.int64), np.empty(LANES, np.int64)
        side = float_lanes(BLOCK_VALUES * (per_row + GROUPS))  # the last values are no one's: they fill the last groups
        weights, products = float_lanes(GROUPS * BLOCK_VALUES), float_lanes(GROUPS * BLOCK_VALUES)
        limited, codes = float_lanes(GROUPS * BLOCK_VALUES), int_lanes(BLOCK_VALUES)
        scales, inverses = float_lanes(GROUPS), float_lanes(GROUPS)
        for first in range(0, count, LANES):
            block_offsets(first, count, width, starts)
            block_offsets(first, count, block_bytes * per_row, targets)
            transpose(x, starts, width, side)
            mean = sum_of_squares(side, 0, width) / np.float32(width)
            for b in range(0, per_row, GROUPS):
                group = side[LANES * BLOCK_VALUES * b :]
                weigh_columns(group, importance[BLOCK_VALUES * b : BLOCK_VALUES * (b + GROUPS)], mean, weights)
                scale, inverse = signed_scale(
                    group, weights, products, limited, 0, BLOCK_VALUES, top, LANES * BLOCK_VALUES)
                store_wide(scales, 0, LANES, scale)
                store_wide(inverses, 0, LANES, inverse)
                for g in range(min(GROUPS, per_row - b)):
                    best = load(inverses, LANES * g)
                    for i in range(0, BLOCK_VALUES * LANES, LANES):
                        code = signed_codes(load(group, LANES * BLOCK_VALUES * g + i), best, top) + top
                        store(codes, i, to_int(where(best == ZERO, ZERO, code)))
                    _put(codes, load(scales, LANES * g), fifth, raw, targets, block_bytes * (b + g))

    @kernel
    def decode(raw: Bytes, values: Floats) -> None:
        for b in range(values.size // BLOCK_VALUES):
            at, to = block_bytes * b, BLOCK_VALUES * b
            d = load_half(raw, at)
            low, high = load_codes(raw, at + 2, fifth)
            store(values, to, to_float(low - levels) * d)
            store(values, to + LANES, to_float(high - levels) * d)

    return Kernels(encode, weighted, decode)


KERNELS = {"Q4_0": _kernels(False), "Q5_0": _kernels(True)}
