"""IQ4_XS: 256 values of 4 bits, numbers of sixteen unevenly spaced levels; every 32 have a 6-bit scale."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..format import Format
from ..formats.iq4_xs import BLOCK
from .blocks import (
    Bytes,
    Floats,
    bytes_to_words,
    column_offsets,
    flat,
    put_all,
    raw_rows,
    sum_of_squares,
    value_rows,
    weigh,
)
from .half import to_half
from .iq4 import CODED, GROUP, best_scale, expand_group, group_codes
from .jit import kernel, kernel_with_arrays
from .lane_memory import block_offsets, load, put_halves, put_words, store, transpose
from .lanes import LANES, absolute, every, every_int, larger, smaller, to_float, where
from .rounding import nearest_int

BLOCK_VALUES, GROUPS = 256, 8
BLOCK_BYTES = BLOCK.itemsize
SCALES_H, SCALES_L, QS = (BLOCK.fields[name][1] for name in ("scales_h", "scales_l", "qs"))  # type: ignore[index]


def encode(form: Format, rows: Floats, importance: Floats | None) -> Bytes:
    """float32 (n, width) → uint8 (n, width / 256 * 136).

    Weight of an error: x * x, or importance * sqrt(2 * mean of the block's squares + x * x).
    """
    raw = raw_rows(form, rows)
    columns = np.empty(0, np.float32) if importance is None else importance
    _encode(flat(rows), flat(columns), raw.reshape(-1))
    return raw


def decode(form: Format, raw: Bytes) -> Floats:
    """uint8 (n, k * 136) → float32 (n, k * 256)."""
    blocks = raw.reshape(-1).view(BLOCK)
    values = value_rows(form, raw)
    _decode(blocks["d"].astype(np.float32), flat(raw), CODED, values.reshape(-1))
    return values


@kernel_with_arrays
def _encode(x: Floats, importance: Floats, raw: Bytes) -> None:
    count, per_row = x.size // BLOCK_VALUES, max(importance.size // BLOCK_VALUES, 1)
    across, weights = np.empty(LANES * BLOCK_VALUES, np.float32), np.empty(LANES * BLOCK_VALUES, np.float32)
    columns, crossings = np.empty(LANES * BLOCK_VALUES, np.float32), np.empty(5 * LANES * GROUP, np.float32)
    codes, words = np.empty(LANES * LANES, np.int32), np.empty(LANES * LANES // 4, np.int32)
    scales = np.empty(LANES * GROUPS, np.float32)
    starts, targets = np.empty(LANES, np.int64), np.empty(LANES, np.int64)
    zero = every(np.float32(0))
    for first in range(0, count, LANES):
        block_offsets(first, count, BLOCK_VALUES, starts)
        block_offsets(first, count, BLOCK_BYTES, targets)
        transpose(x, starts, BLOCK_VALUES, across)
        if importance.size:
            column_offsets(first, count, BLOCK_VALUES, per_row, starts)
            transpose(importance, starts, BLOCK_VALUES, columns)
            mean_twice = sum_of_squares(across, 0, BLOCK_VALUES) * np.float32(2 / BLOCK_VALUES)
            weigh(across, columns, mean_twice, BLOCK_VALUES, weights)
        else:
            for i in range(0, LANES * BLOCK_VALUES, LANES):
                store(weights, i, load(across, i) * load(across, i))
        size, extreme = zero, zero
        for k in range(GROUPS):
            d = best_scale(across, LANES * GROUP * k, weights, crossings)
            store(scales, LANES * k, d)
            more = absolute(d) > size
            size, extreme = where(more, absolute(d), size), where(more, d, extreme)
        d = -extreme / np.float32(32)
        inverse = where(d == zero, zero, np.float32(1) / d)
        low, high = every_int(0), every_int(0)
        for k in range(GROUPS):
            s = larger(every_int(-32), smaller(every_int(31), nearest_int(inverse * load(scales, LANES * k))))
            scale = d * to_float(s)
            group_codes(across, LANES * GROUP * k, where(scale == zero, zero, np.float32(1) / scale), codes)
            bytes_to_words(codes, words, LANES)
            put_all(raw, targets, QS + GROUP // 2 * k, words, LANES // 4)
            low |= ((s + 32) & 15) << (4 * k)
            high |= ((s + 32) >> 4) << (2 * k)
        put_halves(raw, targets, 0, to_half(d))
        put_halves(raw, targets, SCALES_H, high)
        put_words(raw, targets, SCALES_L, low)


@kernel
def _decode(
    scales: Floats, raw: Bytes, coded: NDArray[np.int8], values: Floats
) -> None:
    for b in range(scales.size):
        at = BLOCK_BYTES * b
        for k in range(GROUPS):
            high = raw[at + SCALES_H + k // 4] >> (2 * (k % 4)) & 3
            s = np.int32(raw[at + SCALES_L + k // 2] >> (4 * (k % 2)) & 15 | high << 4)
            d = scales[b] * np.float32(s - 32)
            expand_group(raw, at + QS + GROUP // 2 * k, d, coded, values, BLOCK_VALUES * b + GROUP * k)
