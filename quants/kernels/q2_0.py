"""Q2_0: 64 values of two bits that share one half-precision scale."""

from __future__ import annotations

import numpy as np

from ..format import Format
from ..formats.q2_0 import BLOCK
from .blocks import Bytes, Floats, bytes_to_words, flat, raw_rows, value_rows
from .half import to_half
from .jit import kernel, kernel_with_arrays
from .lane_memory import block_offsets, int_lanes, load, put_halves, put_words, store, transpose
from .lanes import LANES, absolute, every, lane_numbers, larger, to_float, where
from .rounding import half_away

BLOCK_VALUES = 64
BLOCK_BYTES = BLOCK.itemsize
QS = BLOCK.fields["qs"][1]  # type: ignore[index]


def encode(form: Format, rows: Floats, importance: Floats | None) -> Bytes:
    """float32 (n, width) → uint8 (n, width / 64 * 18). Importance has no effect."""
    raw = raw_rows(form, rows)
    _encode(flat(rows), raw.reshape(-1))
    return raw


def decode(form: Format, raw: Bytes) -> Floats:
    """uint8 (n, k * 18) → float32 (n, k * 64)."""
    blocks = raw.reshape(-1).view(BLOCK)
    values = value_rows(form, raw)
    _decode(blocks["d"].astype(np.float32), flat(raw), values.reshape(-1))
    return values


@kernel_with_arrays
def _encode(x: Floats, raw: Bytes) -> None:
    count = x.size // BLOCK_VALUES
    across, zero = np.empty(LANES * BLOCK_VALUES, np.float32), every(np.float32(0))
    codes, words = int_lanes(LANES), np.empty(LANES * LANES // 4, np.int32)
    starts, targets = np.empty(LANES, np.int64), np.empty(LANES, np.int64)
    for first in range(0, count, LANES):
        block_offsets(first, count, BLOCK_VALUES, starts)
        block_offsets(first, count, BLOCK_BYTES, targets)
        transpose(x, starts, BLOCK_VALUES, across)
        d = zero
        for i in range(0, LANES * BLOCK_VALUES, LANES):
            d = larger(d, absolute(load(across, i)))
        inverse = where(d > zero, np.float32(1) / d, zero)
        put_halves(raw, targets, 0, to_half(d))
        for i in range(BLOCK_VALUES // 4):
            four = half_away(load(across, 4 * LANES * i) * inverse) + 1
            for j in range(1, 4):
                q = half_away(load(across, LANES * (4 * i + j)) * inverse) + 1
                four |= q << (2 * j)
            store(codes, LANES * i, four)
        bytes_to_words(codes, words, LANES)
        for i in range(BLOCK_VALUES // 16):
            put_words(raw, targets, QS + 4 * i, load(words, LANES * i))


@kernel
def _decode(scales: Floats, raw: Bytes, values: Floats) -> None:
    shifts = lane_numbers() * 2
    for b in range(scales.size):
        for i in range(BLOCK_VALUES // LANES):
            at = BLOCK_BYTES * b + QS + 4 * i
            word = np.uint32(raw[at]) | np.uint32(raw[at + 1]) << 8 | np.uint32(raw[at + 2]) << 16
            word |= np.uint32(raw[at + 3]) << 24
            q = (word >> shifts) & 3
            store(values, BLOCK_VALUES * b + LANES * i, to_float(q - 1) * scales[b])
