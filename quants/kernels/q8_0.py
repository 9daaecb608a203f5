"""Q8_0: 32 signed bytes that share one half-precision scale."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..format import Format
from ..formats.q8_0 import BLOCK
from .blocks import Bytes, Floats, bytes_to_words, field_offsets, flat, load_half, put_all, raw_rows, value_rows
from .half import to_half
from .jit import kernel, kernel_with_arrays
from .lane_memory import block_offsets, float_lanes, int_lanes, load, put_halves, store, transpose
from .lanes import LANES, to_float, where
from .rounding import half_away
from .scales import extreme

BLOCK_VALUES, BLOCK_BYTES = 32, BLOCK.itemsize
D, QS = field_offsets(BLOCK)
ZERO, ONE, TOP = np.float32(0), np.float32(1), np.float32(127)


def encode(form: Format, rows: Floats, importance: Floats | None) -> Bytes:
    """float32 (n, width) → uint8 (n, width / 32 * 34)."""
    raw = raw_rows(form, rows)
    _encode(flat(rows), raw.reshape(-1))
    return raw


def decode(form: Format, raw: Bytes) -> Floats:
    """uint8 (n, width / 32 * 34) → float32 (n, width)."""
    values = value_rows(form, raw)
    _decode(flat(raw).view(np.int8), values.reshape(-1))
    return values


@kernel_with_arrays
def _encode(x: Floats, raw: Bytes) -> None:
    count = x.size // BLOCK_VALUES
    starts, targets = np.empty(LANES, np.int64), np.empty(LANES, np.int64)
    side, codes = float_lanes(BLOCK_VALUES), int_lanes(BLOCK_VALUES)
    for first in range(0, count, LANES):
        block_offsets(first, count, BLOCK_VALUES, starts)
        block_offsets(first, count, BLOCK_BYTES, targets)
        transpose(x, starts, BLOCK_VALUES, side)
        _, peak = extreme(side, 0, BLOCK_VALUES)
        d = peak / TOP
        inverse = where(d == ZERO, ZERO, ONE / d)
        for i in range(0, BLOCK_VALUES * LANES, LANES):
            store(codes, i, half_away(load(side, i) * inverse) & 255)
        bytes_to_words(codes, codes, BLOCK_VALUES)
        put_halves(raw, targets, D, to_half(d))
        put_all(raw, targets, QS, codes, 8)


@kernel
def _decode(raw: NDArray[np.int8], values: Floats) -> None:
    for b in range(values.size // BLOCK_VALUES):
        at, to = BLOCK_BYTES * b, BLOCK_VALUES * b
        d = load_half(raw, at + D)
        store(values, to, to_float(load(raw, at + QS)) * d)
        store(values, to + LANES, to_float(load(raw, at + QS + LANES)) * d)
