"""TQ2_0: 256 values of -1, 0 or 1 (or 2), two bits each, that share one half-precision scale."""

from __future__ import annotations

import numpy as np

from ..format import Format
from ..formats.tq2_0 import BLOCK
from .blocks import Bytes, Floats, flat, raw_rows, value_rows
from .half import to_half
from .jit import kernel, kernel_with_arrays
from .lane_memory import block_offsets, load, put_halves, store
from .lanes import LANES, absolute, larger, largest_lane, to_float
from .rounding import half_away

BLOCK_VALUES = 256
BLOCK_BYTES = BLOCK.itemsize
D = BLOCK.fields["d"][1]  # type: ignore[index]


def encode(form: Format, rows: Floats, importance: Floats | None) -> Bytes:
    """float32 (n, width) → uint8 (n, width / 256 * 66). Importance has no effect."""
    raw = raw_rows(form, rows)
    _encode(flat(rows), raw.reshape(-1))
    return raw


def decode(form: Format, raw: Bytes) -> Floats:
    """uint8 (n, k * 66) → float32 (n, k * 256)."""
    blocks = raw.reshape(-1).view(BLOCK)
    values = value_rows(form, raw)
    _decode(blocks["d"].astype(np.float32), flat(raw), values.reshape(-1))
    return values


@kernel_with_arrays
def _encode(x: Floats, raw: Bytes) -> None:
    count = x.size // BLOCK_VALUES
    scales, targets = np.zeros(LANES, np.float32), np.empty(LANES, np.int64)
    for first in range(0, count, LANES):
        for b in range(first, min(first + LANES, count)):
            start = BLOCK_VALUES * b
            top = absolute(load(x, start))
            for i in range(start + LANES, start + BLOCK_VALUES, LANES):
                top = larger(top, absolute(load(x, i)))
            d = largest_lane(top)
            scales[b - first] = d
            inverse = np.float32(1) / d if d > 0 else np.float32(0)
            for k in range(2):
                for i in range(0, 32, LANES):
                    at = start + 128 * k + i
                    four = half_away(load(x, at) * inverse) + 1
                    for j in range(1, 4):
                        four |= (half_away(load(x, at + 32 * j) * inverse) + 1) << (2 * j)
                    store(raw, BLOCK_BYTES * b + 32 * k + i, four)
        block_offsets(first, count, BLOCK_BYTES, targets)
        for i in range(count - first, LANES):
            scales[i] = scales[count - first - 1]
        put_halves(raw, targets, D, to_half(load(scales, 0)))


@kernel
def _decode(scales: Floats, raw: Bytes, values: Floats) -> None:
    for b in range(scales.size):
        for k in range(2):
            for i in range(0, 32, LANES):
                four = load(raw, BLOCK_BYTES * b + 32 * k + i)
                for j in range(4):
                    q = ((four >> (2 * j)) & 3) - 1
                    store(values, BLOCK_VALUES * b + 128 * k + 32 * j + i, to_float(q) * scales[b])
