"""IQ2_XS: 256 values; every 8 are a point of a grid of 512 with signs, every 16 have a scale. 2.3125 bits per weight.

    byte   0      2                                    66                            74
           | d    | qs[0]  qs[1]  ...           qs[31] | scales[0]  ...    scales[7] |
           | f16  | 9 bits index, 7 bits signs         | 2 x 4 bits, low half first  |

    weight[8 * k + i] = d * (0.5 + scale k / 2) / 4 * GRID[index of qs[k]][i] * sign i,  GRID of 8, 25, 43
    The eighth sign makes the number of negative ones even.

Encoder: byte for byte the same as ggml's reference. It needs importance weights.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..kernels.blocks import field_offsets, flat, put_all, raw_rows, value_rows
from ..kernels.grid_search import (
    REFIT_OFF_GRID_CELLS,
    fold_signs,
    greatest,
    inverse_step,
    load_blocks,
    odd_levels,
    scale_levels,
    search_group,
    steps,
    working_memory,
)
from ..kernels.grids import EVEN_SIGNS, grid_values, signed, two_points
from ..kernels.half import to_half
from ..kernels.jit import kernel
from ..kernels.lane_memory import block_offsets, load, put_halves, put_words, store
from ..kernels.lanes import LANES, absolute, every, every_int, larger, to_float, where
from ..kernels.neighbours import neighbours

USES_IMPORTANCE = True
WEIGHTS, GROUP, GROUPS = 256, 16, 16
BLOCK = np.dtype([("d", "<f2"), ("qs", "<u2", WEIGHTS // 8), ("scales", "u1", GROUPS // 2)])
SIZE = BLOCK.itemsize
D, QS, SCALES = field_offsets(BLOCK)
ZERO_BELOW = np.float32(1e-15)
STEPS = steps(5, 9, 0.1)


def encode(rows: NDArray[np.float32], importance: NDArray[np.float32]) -> NDArray[np.uint8]:
    """float32 (n, width) → uint8 (n, width / 256 * 74).

    Weight of an error: importance * sqrt(mean of the block's squares + x * x).
    """
    raw = raw_rows(rows, WEIGHTS, BLOCK)
    near = neighbours("IQ2_XS", 2)
    tables = near.entries.reshape(-1), near.codes, near.indexes, odd_levels(8)
    _encode(flat(rows), flat(importance), STEPS, tables, working_memory(8, GROUP, STEPS.size), raw.reshape(-1))
    return raw


def decode(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """uint8 (n, k * 74) → float32 (n, k * 256)."""
    values = value_rows(raw, WEIGHTS, BLOCK)
    blocks = raw.reshape(-1).view(BLOCK)
    _decode(blocks["d"].astype(np.float32), flat(raw), grid_values("IQ2_XS"), EVEN_SIGNS, values.reshape(-1))
    return values


@kernel
def _encode(x, importance, tried, tables, room, raw):  # type: ignore[no-untyped-def]
    count = x.size // WEIGHTS
    blocks, memory, (sizes, signs, points, scales, words, targets) = room
    across, weights, zero = blocks[0], blocks[1], every(np.float32(0))
    for first in range(0, count, LANES):
        load_blocks(x, importance, first, np.float32(1), np.float32(0), blocks)
        top = zero
        for g in range(GROUPS):
            fold_signs(across, LANES * GROUP * g, GROUP, weights, True, sizes, signs)
            peak = greatest(sizes, GROUP)
            dead = peak < ZERO_BELOW
            scale = search_group(
                sizes, weights, LANES * GROUP * g, 2, 8, peak, peak / np.float32(5), tried, REFIT_OFF_GRID_CELLS,
                tables, memory, points)
            turn = where(scale < zero, every_int(127), 0)
            low = load(points, 0) >> 16 | (load(signs, 0) ^ turn) << 9
            high = load(points, LANES) >> 16 | (load(signs, LANES) ^ turn) << 9
            store(words, LANES * g, where(dead, every_int(0), low | high << 16))
            scale = where(dead, zero, absolute(scale))
            store(scales, LANES * g, scale)
            top = larger(top, scale)
        inverse = inverse_step(top)
        block_offsets(first, count, SIZE, targets)
        put_halves(raw, targets, D, to_half(top / np.float32(31)))
        put_all(raw, targets, QS, words, GROUPS)
        put_words(raw, targets, SCALES, scale_levels(scales, 0, 8, inverse))
        put_words(raw, targets, SCALES + 4, scale_levels(scales, 8, 8, inverse))


@kernel
def _decode(
    scales: NDArray[np.float32], raw: NDArray[np.uint8], grid: NDArray[np.int8], signs: NDArray[np.uint8],
    values: NDArray[np.float32],
) -> None:  # fmt: skip
    for b in range(scales.size):
        for g in range(GROUPS):
            at = SIZE * b + QS + 4 * g
            low = np.int64(raw[at]) | np.int64(raw[at + 1]) << 8
            high = np.int64(raw[at + 2]) | np.int64(raw[at + 3]) << 8
            level = raw[SIZE * b + SCALES + g // 2] >> (4 * (g & 1)) & 15
            d = scales[b] * (np.float32(0.5) + np.float32(level)) * np.float32(0.25)
            points = to_float(two_points(grid, low & 511, high & 511)) * d
            bits = signs[low >> 9] | np.int64(signs[high >> 9]) << 8
            store(values, WEIGHTS * b + GROUP * g, signed(points, bits))
