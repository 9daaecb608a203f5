"""IQ4_XS: 256 values of 4 bits, numbers of sixteen unevenly spaced levels; every 32 have a 6-bit scale. 4.25 bits per
weight.

    byte   0      2           4             8                                 136
           | d    | scales_h  | scales_l[4] | qs[0]  qs[1]  ...       qs[127] |
           | f16  | 8 x 2 bits| 8 x 4 bits  | 2 x 4 bits, low half first      |

    s[k] = 4 bits of scales_l (low half of a byte first) | 2 bits of scales_h << 4
    weight[32 * k + i] = d * (s[k] - 32) * LEVEL[low half of qs[16 * k + i]],  i < 16;  + 16 from the high half
    LEVEL = -127 -104 -83 -65 -49 -35 -22 -10 1 13 25 38 53 69 89 113

Encoder: byte for byte the same as ggml's reference: for every 32 values the best of 16 scales by weighted square error.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..kernels.blocks import bytes_to_words, column_offsets, flat, put_all, sum_of_squares, weigh
from ..kernels.half import to_half
from ..kernels.iq4 import CODED, GROUP, best_scale, expand_group, group_codes
from ..kernels.jit import kernel, kernel_with_arrays
from ..kernels.lane_memory import block_offsets, load, put_halves, put_words, store, transpose
from ..kernels.lanes import LANES, absolute, every, every_int, larger, smaller, to_float, where
from ..kernels.rounding import nearest_int

USES_IMPORTANCE = True
WEIGHTS, GROUPS = 256, 8
BLOCK = np.dtype([("d", "<f2"), ("scales_h", "<u2"), ("scales_l", "u1", GROUPS // 2), ("qs", "u1", WEIGHTS // 2)])
SIZE = BLOCK.itemsize
SCALES_H, SCALES_L, QS = (BLOCK.fields[name][1] for name in ("scales_h", "scales_l", "qs"))  # type: ignore[index]


def encode(rows: NDArray[np.float32], importance: NDArray[np.float32] | None = None) -> NDArray[np.uint8]:
    """float32 (n, width) → uint8 (n, width / 256 * 136).

    Weight of an error: x * x, or importance * sqrt(2 * mean of the block's squares + x * x).
    """
    raw = np.empty((len(rows), rows.shape[1] // WEIGHTS * SIZE), np.uint8)
    columns = np.empty(0, np.float32) if importance is None else importance
    _encode(flat(rows), flat(columns), raw.reshape(-1))
    return raw


def decode(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """uint8 (n, k * 136) → float32 (n, k * 256)."""
    blocks = raw.reshape(-1).view(BLOCK)
    values = np.empty((len(raw), raw.shape[1] // SIZE * WEIGHTS), np.float32)
    _decode(blocks["d"].astype(np.float32), flat(raw), CODED, values.reshape(-1))
    return values


@kernel_with_arrays
def _encode(x: NDArray[np.float32], importance: NDArray[np.float32], raw: NDArray[np.uint8]) -> None:
    count, per_row = x.size // WEIGHTS, max(importance.size // WEIGHTS, 1)
    across, weights = np.empty(LANES * WEIGHTS, np.float32), np.empty(LANES * WEIGHTS, np.float32)
    columns, crossings = np.empty(LANES * WEIGHTS, np.float32), np.empty(5 * LANES * GROUP, np.float32)
    codes, words = np.empty(LANES * LANES, np.int32), np.empty(LANES * LANES // 4, np.int32)
    scales = np.empty(LANES * GROUPS, np.float32)
    starts, targets = np.empty(LANES, np.int64), np.empty(LANES, np.int64)
    zero = every(np.float32(0))
    for first in range(0, count, LANES):
        block_offsets(first, count, WEIGHTS, starts)
        block_offsets(first, count, SIZE, targets)
        transpose(x, starts, WEIGHTS, across)
        if importance.size:
            column_offsets(first, count, WEIGHTS, per_row, starts)
            transpose(importance, starts, WEIGHTS, columns)
            weigh(across, columns, sum_of_squares(across, 0, WEIGHTS) * np.float32(2 / WEIGHTS), WEIGHTS, weights)
        else:
            for i in range(0, LANES * WEIGHTS, LANES):
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
    scales: NDArray[np.float32], raw: NDArray[np.uint8], coded: NDArray[np.int8], values: NDArray[np.float32]
) -> None:
    for b in range(scales.size):
        at = SIZE * b
        for k in range(GROUPS):
            high = raw[at + SCALES_H + k // 4] >> (2 * (k % 4)) & 3
            s = np.int32(raw[at + SCALES_L + k // 2] >> (4 * (k % 2)) & 15 | high << 4)
            d = scales[b] * np.float32(s - 32)
            expand_group(raw, at + QS + GROUP // 2 * k, d, coded, values, WEIGHTS * b + GROUP * k)
