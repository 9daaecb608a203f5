"""TQ1_0: 256 values of -1, 0 or 1, five to a byte, that share one half-precision scale. 1.6875 bits per weight.

    byte   0                              48                      52     54
           | qs[0]  qs[1]  ...     qs[47] | qh[0]  ...      qh[3] | d    |
           | 5 trits each                 | 4 trits each          | f16  |

    A byte is ceil(t * 256 / 243) where t, of five base-3 digits, holds the first value in its highest digit.
    weight[32 * j + i]       = d * (digit j of qs[i] - 1)        i < 32, j < 5
    weight[160 + 16 * j + i] = d * (digit j of qs[32 + i] - 1)   i < 16, j < 5
    weight[240 + 4 * j + i]  = d * (digit j of qh[i] - 1)        i < 4,  j < 4

Encoder: byte for byte the same as ggml's reference: d is the largest magnitude. It ignores importance weights, and is
made for models trained with such weights.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..kernels.blocks import flat
from ..kernels.half import to_half
from ..kernels.jit import inlined, kernel, kernel_with_arrays
from ..kernels.lane_memory import block_offsets, load, put_halves, store
from ..kernels.lanes import LANES, Lanes, absolute, every, larger, largest_lane, to_float
from ..kernels.rounding import half_away

WEIGHTS = 256
BLOCK = np.dtype([("qs", "u1", 48), ("qh", "u1", 4), ("d", "<f2")])
SIZE = BLOCK.itemsize
QH = BLOCK.fields["qh"][1]  # type: ignore[index]
D = BLOCK.fields["d"][1]  # type: ignore[index]
# Where sixteen bytes' first values lie in a block, and how far apart their digits are.
GROUPS = ((0, 32), (16, 32), (160, 16))


def encode(rows: NDArray[np.float32], importance: NDArray[np.float32] | None = None) -> NDArray[np.uint8]:
    """float32 (n, width) → uint8 (n, width / 256 * 54). Importance has no effect."""
    raw = np.empty((len(rows), rows.shape[1] // WEIGHTS * SIZE), np.uint8)
    _encode(flat(rows), raw.reshape(-1))
    return raw


def decode(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """uint8 (n, k * 54) → float32 (n, k * 256)."""
    blocks = raw.reshape(-1).view(BLOCK)
    values = np.empty((len(raw), raw.shape[1] // SIZE * WEIGHTS), np.float32)
    _decode(blocks["d"].astype(np.float32), flat(raw), values.reshape(-1))
    return values


@inlined
def _byte(trits: Lanes) -> Lanes:
    """ceil(trits * 256 / 243) for trits < 243."""
    return ((trits * 256 + 242) * 17261) >> 22


@kernel_with_arrays
def _encode(x: NDArray[np.float32], raw: NDArray[np.uint8]) -> None:
    count = x.size // WEIGHTS
    scales, targets = np.zeros(LANES, np.float32), np.empty(LANES, np.int64)
    last = np.empty(LANES, np.int32)
    for first in range(0, count, LANES):
        for b in range(first, min(first + LANES, count)):
            start = WEIGHTS * b
            top = absolute(load(x, start))
            for i in range(start + LANES, start + WEIGHTS, LANES):
                top = larger(top, absolute(load(x, i)))
            d = largest_lane(top)
            scales[b - first] = d
            inverse = np.float32(1) / d if d > 0 else np.float32(0)
            for g in range(3):
                at, step = start + GROUPS[g][0], GROUPS[g][1]
                trits = half_away(load(x, at) * inverse) + 1
                for j in range(1, 5):
                    trits = trits * 3 + half_away(load(x, at + j * step) * inverse) + 1
                store(raw, SIZE * b + LANES * g, _byte(trits))
            store(last, 0, half_away(load(x, start + 240) * inverse) + 1)
            for i in range(4):
                trits = ((last[i] * 3 + last[4 + i]) * 3 + last[8 + i]) * 3 + last[12 + i]
                raw[SIZE * b + QH + i] = (trits * 3 * 256 + 242) // 243
        block_offsets(first, count, SIZE, targets)
        for i in range(count - first, LANES):
            scales[i] = scales[count - first - 1]
        put_halves(raw, targets, D, to_half(load(scales, 0)))


@kernel
def _decode(scales: NDArray[np.float32], raw: NDArray[np.uint8], values: NDArray[np.float32]) -> None:
    for b in range(scales.size):
        d = every(scales[b])
        for g in range(3):
            at, step = WEIGHTS * b + GROUPS[g][0], GROUPS[g][1]
            trits = load(raw, SIZE * b + LANES * g)
            for j in range(5):
                store(values, at + j * step, to_float(((trits * 3) >> 8) - 1) * d)
                trits = (trits * 3) & 255
        for i in range(4):
            rest = np.int32(raw[SIZE * b + QH + i])
            for j in range(4):
                values[WEIGHTS * b + 240 + 4 * j + i] = np.float32(((rest * 3) >> 8) - 1) * scales[b]
                rest = (rest * 3) & 255
