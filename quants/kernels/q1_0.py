"""Q1_0: 128 signs that share one half-precision scale."""

from __future__ import annotations

import numpy as np

from ..format import Format
from ..formats.q1_0 import BLOCK
from .blocks import Bytes, Floats, flat, raw_rows, value_rows
from .half import to_half
from .jit import kernel, kernel_with_arrays
from .lane_memory import block_offsets, load, put_halves, store, transpose
from .lanes import LANES, absolute, every, every_int, lane_numbers, mask_bits, where

BLOCK_VALUES = 128
BLOCK_BYTES = BLOCK.itemsize
QS = BLOCK.fields["qs"][1]  # type: ignore[index]


def encode(form: Format, rows: Floats, importance: Floats | None) -> Bytes:
    """float32 (n, width) → uint8 (n, width / 128 * 18). Importance has no effect."""
    raw = raw_rows(form, rows)
    _encode(flat(rows), raw.reshape(-1))
    return raw


def decode(form: Format, raw: Bytes) -> Floats:
    """uint8 (n, k * 18) → float32 (n, k * 128)."""
    blocks = raw.reshape(-1).view(BLOCK)
    values = value_rows(form, raw)
    _decode(blocks["d"].astype(np.float32), flat(raw), values.reshape(-1))
    return values


@kernel_with_arrays
def _encode(x: Floats, raw: Bytes) -> None:
    count = x.size // BLOCK_VALUES
    across, zero = np.empty(LANES * BLOCK_VALUES, np.float32), every(np.float32(0))
    starts, targets = np.empty(LANES, np.int64), np.empty(LANES, np.int64)
    for first in range(0, count, LANES):
        block_offsets(first, count, BLOCK_VALUES, starts)
        block_offsets(first, count, BLOCK_BYTES, targets)
        transpose(x, starts, BLOCK_VALUES, across)
        total = zero
        for i in range(0, LANES * BLOCK_VALUES, LANES):
            total += absolute(load(across, i))
        put_halves(raw, targets, 0, to_half(total / np.float32(BLOCK_VALUES)))
        for b in range(first, min(first + LANES, count)):
            for i in range(BLOCK_VALUES // LANES):
                signs = mask_bits(load(x, BLOCK_VALUES * b + LANES * i) >= zero)
                raw[BLOCK_BYTES * b + QS + 2 * i] = signs
                raw[BLOCK_BYTES * b + QS + 2 * i + 1] = signs >> 8


@kernel
def _decode(scales: Floats, raw: Bytes, values: Floats) -> None:
    bit = every_int(1) << lane_numbers()
    for b in range(scales.size):
        positive = every(scales[b])
        negative = -positive
        for i in range(BLOCK_VALUES // LANES):
            signs = raw[BLOCK_BYTES * b + QS + 2 * i] | np.int32(raw[BLOCK_BYTES * b + QS + 2 * i + 1]) << 8
            store(values, BLOCK_VALUES * b + LANES * i, where((bit & signs) == 0, negative, positive))
