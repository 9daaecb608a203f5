"""IQ4_NL: 32 values of 4 bits, numbers of sixteen unevenly spaced levels, under one scale. 4.5 bits per weight.

    byte   0      2                               18
           | d    | qs[0]  qs[1]  ...      qs[15] |
           | f16  | 2 x 4 bits, low half first    |

    weight[i] = d * LEVEL[low half of qs[i]],  weight[16 + i] from the high half
    LEVEL = -127 -104 -83 -65 -49 -35 -22 -10 1 13 25 38 53 69 89 113

Encoder: byte for byte the same as ggml's reference: the best of 16 scales by weighted square error.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..kernels.blocks import bytes_to_words, column_offsets, flat, put_all, sum_of_squares, weigh
from ..kernels.half import to_half
from ..kernels.iq4 import CODED, GROUP, best_scale, expand_group, group_codes
from ..kernels.jit import kernel, kernel_with_arrays
from ..kernels.lane_memory import block_offsets, load, put_halves, store, transpose
from ..kernels.lanes import LANES, every, where

USES_IMPORTANCE = True
WEIGHTS = GROUP
BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", WEIGHTS // 2)])
SIZE = BLOCK.itemsize
QS = BLOCK.fields["qs"][1]  # type: ignore[index]


def encode(rows: NDArray[np.float32], importance: NDArray[np.float32] | None = None) -> NDArray[np.uint8]:
    """float32 (n, width) → uint8 (n, width / 32 * 18).

    Weight of an error: x * x, or importance * sqrt(2 * mean of the block's squares + x * x).
    """
    raw = np.empty((len(rows), rows.shape[1] // WEIGHTS * SIZE), np.uint8)
    columns = np.empty(0, np.float32) if importance is None else importance
    _encode(flat(rows), flat(columns), raw.reshape(-1))
    return raw


def decode(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """uint8 (n, k * 18) → float32 (n, k * 32)."""
    blocks = raw.reshape(-1).view(BLOCK)
    values = np.empty((len(raw), raw.shape[1] // SIZE * WEIGHTS), np.float32)
    _decode(blocks["d"].astype(np.float32), flat(raw), CODED, values.reshape(-1))
    return values


@kernel_with_arrays
def _encode(x: NDArray[np.float32], importance: NDArray[np.float32], raw: NDArray[np.uint8]) -> None:
    count, per_row = x.size // WEIGHTS, max(importance.size // WEIGHTS, 1)
    across, weights = np.empty(LANES * WEIGHTS, np.float32), np.empty(LANES * WEIGHTS, np.float32)
    columns, crossings = np.empty(LANES * WEIGHTS, np.float32), np.empty(5 * LANES * WEIGHTS, np.float32)
    codes, words = np.empty(LANES * LANES, np.int32), np.empty(LANES * LANES // 4, np.int32)
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
        d = best_scale(across, 0, weights, crossings)
        group_codes(across, 0, where(d == zero, zero, np.float32(1) / d), codes)
        bytes_to_words(codes, words, LANES)
        put_halves(raw, targets, 0, to_half(d))
        put_all(raw, targets, QS, words, LANES // 4)


@kernel
def _decode(
    scales: NDArray[np.float32], raw: NDArray[np.uint8], coded: NDArray[np.int8], values: NDArray[np.float32]
) -> None:
    for b in range(scales.size):
        expand_group(raw, SIZE * b + QS, scales[b], coded, values, WEIGHTS * b)
