"""TQ2_0: 256 values of -1, 0 or 1 (or 2), two bits each, that share one half-precision scale. 2.0625 bits per weight.

    byte   0                              64     66
           | qs[0]  qs[1]  ...     qs[63] | d    |
           | 4 x 2 bits                   | f16  |

    weight[128 * k + 32 * j + i] = d * (q - 1),  q = 2 bits of qs[32 * k + i] from bit 2 * j on

Encoder: byte for byte the same as ggml's reference: d is the largest magnitude, so q = 3 is never written. It ignores
importance weights, and is made for models trained with such weights.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..kernels.blocks import flat
from ..kernels.half import to_half
from ..kernels.jit import kernel, kernel_with_arrays
from ..kernels.lane_memory import block_offsets, load, put_halves, store
from ..kernels.lanes import LANES, absolute, larger, largest_lane, to_float
from ..kernels.rounding import half_away

WEIGHTS = 256
BLOCK = np.dtype([("qs", "u1", WEIGHTS // 4), ("d", "<f2")])
SIZE = BLOCK.itemsize
D = BLOCK.fields["d"][1]  # type: ignore[index]


def encode(rows: NDArray[np.float32], importance: NDArray[np.float32] | None = None) -> NDArray[np.uint8]:
    """float32 (n, width) → uint8 (n, width / 256 * 66). Importance has no effect."""
    raw = np.empty((len(rows), rows.shape[1] // WEIGHTS * SIZE), np.uint8)
    _encode(flat(rows), raw.reshape(-1))
    return raw


def decode(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """uint8 (n, k * 66) → float32 (n, k * 256)."""
    blocks = raw.reshape(-1).view(BLOCK)
    values = np.empty((len(raw), raw.shape[1] // SIZE * WEIGHTS), np.float32)
    _decode(blocks["d"].astype(np.float32), flat(raw), values.reshape(-1))
    return values


@kernel_with_arrays
def _encode(x: NDArray[np.float32], raw: NDArray[np.uint8]) -> None:
    count = x.size // WEIGHTS
    scales, targets = np.zeros(LANES, np.float32), np.empty(LANES, np.int64)
    for first in range(0, count, LANES):
        for b in range(first, min(first + LANES, count)):
            start = WEIGHTS * b
            top = absolute(load(x, start))
            for i in range(start + LANES, start + WEIGHTS, LANES):
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
                    store(raw, SIZE * b + 32 * k + i, four)
        block_offsets(first, count, SIZE, targets)
        for i in range(count - first, LANES):
            scales[i] = scales[count - first - 1]
        put_halves(raw, targets, D, to_half(load(scales, 0)))


@kernel
def _decode(scales: NDArray[np.float32], raw: NDArray[np.uint8], values: NDArray[np.float32]) -> None:
    for b in range(scales.size):
        for k in range(2):
            for i in range(0, 32, LANES):
                four = load(raw, SIZE * b + 32 * k + i)
                for j in range(4):
                    q = ((four >> (2 * j)) & 3) - 1
                    store(values, WEIGHTS * b + 128 * k + 32 * j + i, to_float(q) * scales[b])
