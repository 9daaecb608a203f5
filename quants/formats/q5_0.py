"""Q5_0: 32 codes of 5 bits that share one half-precision scale. 5.5 bits per weight.

    byte   0     2             6                                22
           | d   | qh          | qs[0]    qs[1]    ...    qs[15] |
           | f16 | fifth bits  | 2 x 4 bits ...                  |

    qs[i] = code[i] & 15 | (code[i + 16] & 15) << 4; bit i of qh = code[i] >> 4
    weight[i] = d * (code[i] - 16)

Encoder: byte for byte the same as ggml's reference, with and without importance weights.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..kernels.blocks import (
    Floats,
    Offsets,
    Words,
    bytes_to_words,
    field_offsets,
    flat,
    load_half,
    load_word,
    put_all,
    raw_rows,
    sum_of_squares,
    value_rows,
    weigh_columns,
)
from ..kernels.half import to_half
from ..kernels.jit import inlined, kernel, kernel_with_arrays
from ..kernels.lane_memory import block_offsets, float_lanes, int_lanes, load, put_halves, put_words, store, transpose
from ..kernels.lanes import LANES, Lanes, every_int, lane_numbers, smaller, to_float, to_int, where
from ..kernels.scales import extreme, signed_codes, signed_scale
from ..kernels.wide_lanes import GROUPS, store_wide

BLOCK = np.dtype([("d", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)])
SIZE, BYTES = 32, BLOCK.itemsize
D, QH, QS = field_offsets(BLOCK)
USES_IMPORTANCE = True
ZERO, ONE, TOP = np.float32(0), np.float32(1), np.float32(16)


def encode(rows: Floats, importance: Floats | None = None) -> NDArray[np.uint8]:
    """float32 (n, width) → uint8 (n, width / 32 * 22), with weights the best of 19 scales."""
    raw = raw_rows(rows, SIZE, BLOCK)
    if importance is None:
        _encode(flat(rows), raw.reshape(-1))
    else:
        _encode_weighted(flat(rows), flat(importance), raw.reshape(-1))
    return raw


def decode(raw: NDArray[np.uint8]) -> Floats:
    """uint8 (n, width / 32 * 22) → float32 (n, width)."""
    values = value_rows(raw, SIZE, BLOCK)
    _decode(flat(raw), values.reshape(-1))
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
        signed, _ = extreme(side, 0, SIZE)
        d = signed / -TOP
        inverse = where(d == ZERO, ZERO, ONE / d)
        for i in range(0, SIZE * LANES, LANES):
            store(codes, i, smaller(to_int(load(side, i) * inverse + np.float32(16.5)), 31))
        _put(codes, d, raw, targets, 0)


@kernel_with_arrays
def _encode_weighted(x: Floats, importance: Floats, raw: NDArray[np.uint8]) -> None:
    """Sixteen rows side by side: weights count the mean square of the whole row."""
    width = importance.size
    count, per_row = x.size // width, width // SIZE
    starts, targets = np.empty(LANES, np.int64), np.empty(LANES, np.int64)
    side = float_lanes(SIZE * (per_row + GROUPS))  # the last values are no one's: they fill the last groups in step
    weights, products, limited = float_lanes(GROUPS * SIZE), float_lanes(GROUPS * SIZE), float_lanes(GROUPS * SIZE)
    scales, inverses, codes = float_lanes(GROUPS), float_lanes(GROUPS), int_lanes(SIZE)
    for first in range(0, count, LANES):
        block_offsets(first, count, width, starts)
        block_offsets(first, count, BYTES * per_row, targets)
        transpose(x, starts, width, side)
        mean = sum_of_squares(side, 0, width) / np.float32(width)
        for block in range(0, per_row, GROUPS):
            group = side[LANES * SIZE * block :]
            columns = importance[SIZE * block : SIZE * (block + GROUPS)]
            weigh_columns(group, columns, mean, weights)
            scale, inverse = signed_scale(group, weights, products, limited, 0, SIZE, TOP, LANES * SIZE)
            store_wide(scales, 0, LANES, scale)
            store_wide(inverses, 0, LANES, inverse)
            for g in range(min(GROUPS, per_row - block)):
                best = load(inverses, LANES * g)
                for i in range(0, SIZE * LANES, LANES):
                    code = signed_codes(load(group, LANES * SIZE * g + i), best, TOP) + TOP
                    store(codes, i, to_int(where(best == ZERO, ZERO, code)))
                _put(codes, load(scales, LANES * g), raw, targets, BYTES * (block + g))


@inlined
def _put(codes: Words, d: Lanes, raw: NDArray[np.uint8], targets: Offsets, at: int) -> None:
    bytes_to_words(codes, codes, SIZE)
    high = every_int(0)
    for k in range(8):  # one bit of each of four bytes, drawn together
        bits = (load(codes, LANES * k) >> 4) & 0x01010101
        high |= ((bits | (bits >> 7) | (bits >> 14) | (bits >> 21)) & 15) << (4 * k)
    for k in range(4):
        low = load(codes, LANES * k) & 0x0F0F0F0F
        store(codes, LANES * k, low | ((load(codes, LANES * (k + 4)) & 0x0F0F0F0F) << 4))
    put_halves(raw, targets, at + D, to_half(d))
    put_words(raw, targets, at + QH, high)
    put_all(raw, targets, at + QS, codes, 4)


@kernel
def _decode(raw: NDArray[np.uint8], values: Floats) -> None:
    for b in range(values.size // SIZE):
        at, to = BYTES * b, SIZE * b
        d = load_half(raw, at + D)
        high = load_word(raw, at + QH) >> lane_numbers()
        q = load(raw, at + QS)
        store(values, to, to_float((q & 15 | (high & 1) << 4) - 16) * d)
        store(values, to + LANES, to_float((q >> 4 | (high >> 16 & 1) << 4) - 16) * d)
