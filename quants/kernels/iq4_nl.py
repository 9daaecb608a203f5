"""IQ4_NL: 32 values of 4 bits, numbers of sixteen unevenly spaced levels, under one scale."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..format import Format
from ..formats.iq4_nl import BLOCK
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
from .lane_memory import block_offsets, load, put_halves, store, transpose
from .lanes import LANES, every, where

BLOCK_VALUES = GROUP
BLOCK_BYTES = BLOCK.itemsize
QS = BLOCK.fields["qs"][1]  # type: ignore[index]


def encode(form: Format, rows: Floats, importance: Floats | None) -> Bytes:
    """float32 (n, width) → uint8 (n, width / 32 * 18).

    Weight of an error: x * x, or importance * sqrt(2 * mean of the block's squares + x * x).
    """
    raw = raw_rows(form, rows)
    columns = np.empty(0, np.float32) if importance is None else importance
    _encode(flat(rows), flat(columns), raw.reshape(-1))
    return raw


def decode(form: Format, raw: Bytes) -> Floats:
    """uint8 (n, k * 18) → float32 (n, k * 32)."""
    blocks = raw.reshape(-1).view(BLOCK)
    values = value_rows(form, raw)
    _decode(blocks["d"].astype(np.float32), flat(raw), CODED, values.reshape(-1))
    return values


@kernel_with_arrays
def _encode(x: Floats, importance: Floats, raw: Bytes) -> None:
    count, per_row = x.size // BLOCK_VALUES, max(importance.size // BLOCK_VALUES, 1)
    across, weights = np.empty(LANES * BLOCK_VALUES, np.float32), np.empty(LANES * BLOCK_VALUES, np.float32)
    columns, crossings = np.empty(LANES * BLOCK_VALUES, np.float32), np.empty(5 * LANES * BLOCK_VALUES, np.float32)
    codes, words = np.empty(LANES * LANES, np.int32), np.empty(LANES * LANES // 4, np.int32)
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
        d = best_scale(across, 0, weights, crossings)
        group_codes(across, 0, where(d == zero, zero, np.float32(1) / d), codes)
        bytes_to_words(codes, words, LANES)
        put_halves(raw, targets, 0, to_half(d))
        put_all(raw, targets, QS, words, LANES // 4)


@kernel
def _decode(
    scales: Floats, raw: Bytes, coded: NDArray[np.int8], values: Floats
) -> None:
    for b in range(scales.size):
        expand_group(raw, BLOCK_BYTES * b + QS, scales[b], coded, values, BLOCK_VALUES * b)
