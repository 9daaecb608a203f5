"""Q2_0: 64 values of two bits that share one half-precision scale. 2.25 bits per weight.

    byte   0      2                               18
           | d    | qs[0]  qs[1]  ...      qs[15] |
           | f16  | 4 x 2 bits, lowest first      |

    weight[4 * i + j] = d * (q - 1),  q = 2 bits of qs[i] from bit 2 * j on

Encoder: byte for byte the same as ggml's reference: d is the largest magnitude, so q = 3 is never written. It ignores
importance weights.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..kernels.blocks import bytes_to_words, flat
from ..kernels.half import to_half
from ..kernels.jit import kernel, kernel_with_arrays
from ..kernels.lane_memory import block_offsets, int_lanes, load, put_halves, put_words, store, transpose
from ..kernels.lanes import LANES, absolute, every, lane_numbers, larger, to_float, where
from ..kernels.rounding import half_away

WEIGHTS = 64
BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", WEIGHTS // 4)])
SIZE = BLOCK.itemsize
QS = BLOCK.fields["qs"][1]  # type: ignore[index]


def encode(rows: NDArray[np.float32], importance: NDArray[np.float32] | None = None) -> NDArray[np.uint8]:
    """float32 (n, width) → uint8 (n, width / 64 * 18). Importance has no effect."""
    raw = np.empty((len(rows), rows.shape[1] // WEIGHTS * SIZE), np.uint8)
    _encode(flat(rows), raw.reshape(-1))
    return raw


def decode(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """uint8 (n, k * 18) → float32 (n, k * 64)."""
    blocks = raw.reshape(-1).view(BLOCK)
    values = np.empty((len(raw), raw.shape[1] // SIZE * WEIGHTS), np.float32)
    _decode(blocks["d"].astype(np.float32), flat(raw), values.reshape(-1))
    return values


@kernel_with_arrays
def _encode(x: NDArray[np.float32], raw: NDArray[np.uint8]) -> None:
    count = x.size // WEIGHTS
    across, zero = np.empty(LANES * WEIGHTS, np.float32), every(np.float32(0))
    codes, words = int_lanes(LANES), np.empty(LANES * LANES // 4, np.int32)
    starts, targets = np.empty(LANES, np.int64), np.empty(LANES, np.int64)
    for first in range(0, count, LANES):
        block_offsets(first, count, WEIGHTS, starts)
        block_offsets(first, count, SIZE, targets)
        transpose(x, starts, WEIGHTS, across)
        d = zero
        for i in range(0, LANES * WEIGHTS, LANES):
            d = larger(d, absolute(load(across, i)))
        inverse = where(d > zero, np.float32(1) / d, zero)
        put_halves(raw, targets, 0, to_half(d))
        for i in range(WEIGHTS // 4):
            four = half_away(load(across, 4 * LANES * i) * inverse) + 1
            for j in range(1, 4):
                q = half_away(load(across, LANES * (4 * i + j)) * inverse) + 1
                four |= q << (2 * j)
            store(codes, LANES * i, four)
        bytes_to_words(codes, words, LANES)
        for i in range(WEIGHTS // 16):
            put_words(raw, targets, QS + 4 * i, load(words, LANES * i))


@kernel
def _decode(scales: NDArray[np.float32], raw: NDArray[np.uint8], values: NDArray[np.float32]) -> None:
    shifts = lane_numbers() * 2
    for b in range(scales.size):
        for i in range(WEIGHTS // LANES):
            at = SIZE * b + QS + 4 * i
            word = np.uint32(raw[at]) | np.uint32(raw[at + 1]) << 8 | np.uint32(raw[at + 2]) << 16
            word |= np.uint32(raw[at + 3]) << 24
            q = (word >> shifts) & 3
            store(values, WEIGHTS * b + LANES * i, to_float(q - 1) * scales[b])
