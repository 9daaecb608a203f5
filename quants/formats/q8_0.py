"""Q8_0: 32 signed bytes that share one half-precision scale. 8.5 bits per weight.

    byte   0     2                              34
           | d   | qs[0]  qs[1]  ...     qs[31]  |
           | f16 | i8                            |

    weight[i] = d * qs[i]

Encoder: byte for byte the same as ggml's reference. Importance has no effect.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..kernels.blocks import Floats, bytes_to_words, field_offsets, flat, load_half, put_all, raw_rows, value_rows
from ..kernels.half import to_half
from ..kernels.jit import kernel, kernel_with_arrays
from ..kernels.lane_memory import block_offsets, float_lanes, int_lanes, load, put_halves, store, transpose
from ..kernels.lanes import LANES, to_float, where
from ..kernels.rounding import half_away
from ..kernels.scales import extreme

BLOCK = np.dtype([("d", "<f2"), ("qs", "i1", 32)])
SIZE, BYTES = 32, BLOCK.itemsize
D, QS = field_offsets(BLOCK)
ZERO, ONE, TOP = np.float32(0), np.float32(1), np.float32(127)


def encode(rows: Floats, importance: Floats | None = None) -> NDArray[np.uint8]:
    """float32 (n, width) → uint8 (n, width / 32 * 34)."""
    raw = raw_rows(rows, SIZE, BLOCK)
    _encode(flat(rows), raw.reshape(-1))
    return raw


def decode(raw: NDArray[np.uint8]) -> Floats:
    """uint8 (n, width / 32 * 34) → float32 (n, width)."""
    values = value_rows(raw, SIZE, BLOCK)
    _decode(flat(raw).view(np.int8), values.reshape(-1))
    return values


@kernel_with_arrays
def _encode(x: Floats, raw: NDArray[np.uint8]) -> None:
    count = x.size // SIZE
    starts, targets = np.empty(LANES, np.int64), np.empty(LANES, np.int64)
    side, codes = float_lanes(SIZE), int_lanes(SIZE)
    for first in range(0, count, LANES):
        block_offsets(first, count, SIZE, starts)
        block_offsets(first, count, BYTES, targets)
        transpose(x, starts, SIZE, side)
        _, peak = extreme(side, 0, SIZE)
        d = peak / TOP
        inverse = where(d == ZERO, ZERO, ONE / d)
        for i in range(0, SIZE * LANES, LANES):
            store(codes, i, half_away(load(side, i) * inverse) & 255)
        bytes_to_words(codes, codes, SIZE)
        put_halves(raw, targets, D, to_half(d))
        put_all(raw, targets, QS, codes, 8)


@kernel
def _decode(raw: NDArray[np.int8], values: Floats) -> None:
    for b in range(values.size // SIZE):
        at, to = BYTES * b, SIZE * b
        d = load_half(raw, at + D)
        store(values, to, to_float(load(raw, at + QS)) * d)
        store(values, to + LANES, to_float(load(raw, at + QS + LANES)) * d)
