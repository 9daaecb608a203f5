"""Q1_0: 128 signs that share one half-precision scale. 1.125 bits per weight.

    byte   0      2                               18
           | d    | qs[0]  qs[1]  ...      qs[15] |
           | f16  | 8 bits each, lowest first     |

    weight[8 * i + j] = d if bit j of qs[i] else -d

Encoder: byte for byte the same as ggml's reference: d is the mean magnitude. It ignores importance weights.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..kernels.blocks import flat
from ..kernels.half import to_half
from ..kernels.jit import kernel, kernel_with_arrays
from ..kernels.lane_memory import block_offsets, load, put_halves, store, transpose
from ..kernels.lanes import LANES, absolute, every, every_int, lane_numbers, mask_bits, where

WEIGHTS = 128
BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", WEIGHTS // 8)])
SIZE = BLOCK.itemsize
QS = BLOCK.fields["qs"][1]  # type: ignore[index]


def encode(rows: NDArray[np.float32], importance: NDArray[np.float32] | None = None) -> NDArray[np.uint8]:
    """float32 (n, width) → uint8 (n, width / 128 * 18). Importance has no effect."""
    raw = np.empty((len(rows), rows.shape[1] // WEIGHTS * SIZE), np.uint8)
    _encode(flat(rows), raw.reshape(-1))
    return raw


def decode(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """uint8 (n, k * 18) → float32 (n, k * 128)."""
    blocks = raw.reshape(-1).view(BLOCK)
    values = np.empty((len(raw), raw.shape[1] // SIZE * WEIGHTS), np.float32)
    _decode(blocks["d"].astype(np.float32), flat(raw), values.reshape(-1))
    return values


@kernel_with_arrays
def _encode(x: NDArray[np.float32], raw: NDArray[np.uint8]) -> None:
    count = x.size // WEIGHTS
    across, zero = np.empty(LANES * WEIGHTS, np.float32), every(np.float32(0))
    starts, targets = np.empty(LANES, np.int64), np.empty(LANES, np.int64)
    for first in range(0, count, LANES):
        block_offsets(first, count, WEIGHTS, starts)
        block_offsets(first, count, SIZE, targets)
        transpose(x, starts, WEIGHTS, across)
        total = zero
        for i in range(0, LANES * WEIGHTS, LANES):
            total += absolute(load(across, i))
        put_halves(raw, targets, 0, to_half(total / np.float32(WEIGHTS)))
        for b in range(first, min(first + LANES, count)):
            for i in range(WEIGHTS // LANES):
                signs = mask_bits(load(x, WEIGHTS * b + LANES * i) >= zero)
                raw[SIZE * b + QS + 2 * i] = signs
                raw[SIZE * b + QS + 2 * i + 1] = signs >> 8


@kernel
def _decode(scales: NDArray[np.float32], raw: NDArray[np.uint8], values: NDArray[np.float32]) -> None:
    bit = every_int(1) << lane_numbers()
    for b in range(scales.size):
        positive = every(scales[b])
        negative = -positive
        for i in range(WEIGHTS // LANES):
            signs = raw[SIZE * b + QS + 2 * i] | np.int32(raw[SIZE * b + QS + 2 * i + 1]) << 8
            store(values, WEIGHTS * b + LANES * i, where((bit & signs) == 0, negative, positive))
