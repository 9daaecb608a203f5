"""IQ3_XXS: 256 values; every 4 are a point of a grid of 256 with signs, every 32 have a scale. 3.0625 bits per weight.

    byte   0      2                    66                                         98
           | d    | qs[64]             | scales_and_signs[8]                      |
           | f16  | 8 bits index each  | u32: 4 x 7 bits signs, then 4 bits scale |

    weight[4 * k + i] = d * (0.5 + scale k / 8) / 2 * GRID[qs[k]][i] * sign,  GRID of 4, 12, 20, 28, 36, 44, 52, 62
    The eighth sign makes the number of negative ones even.

Encoder: byte for byte the same as ggml's reference.
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
from ..kernels.grids import EVEN_SIGNS, four_points, grid_values, signed
from ..kernels.half import to_half
from ..kernels.jit import kernel
from ..kernels.lane_memory import block_offsets, load, put_halves, store
from ..kernels.lanes import LANES, absolute, every, every_int, larger, to_float, where
from ..kernels.neighbours import neighbours

USES_IMPORTANCE = True
WEIGHTS, GROUP, GROUPS = 256, 32, 8
BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", WEIGHTS // 4), ("scales_and_signs", "<u4", GROUPS)])
SIZE = BLOCK.itemsize
D, QS, SCALES_AND_SIGNS = field_offsets(BLOCK)
ZERO_BELOW = np.float32(1e-8)
STEPS = steps(15, 15, 0.2)
FUDGE = np.float32(1.0125)  # of the stored scale, as the reference has it


def encode(rows: NDArray[np.float32], importance: NDArray[np.float32] | None = None) -> NDArray[np.uint8]:
    """float32 (n, width) → uint8 (n, width / 256 * 98).

    Weight of an error: x * x, or importance * sqrt(2 * mean of the block's squares + x * x).
    """
    raw = raw_rows(rows, WEIGHTS, BLOCK)
    near = neighbours("IQ3_XXS", 2)
    tables = near.entries.reshape(-1), near.codes, near.indexes, odd_levels(4)
    columns = np.empty(0, np.float32) if importance is None else importance
    _encode(flat(rows), flat(columns), STEPS, tables, working_memory(4, GROUP, STEPS.size), raw.reshape(-1))
    return raw


def decode(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """uint8 (n, k * 98) → float32 (n, k * 256)."""
    values = value_rows(raw, WEIGHTS, BLOCK)
    blocks = raw.reshape(-1).view(BLOCK)
    words = np.ascontiguousarray(blocks["scales_and_signs"]).reshape(-1)
    _decode(blocks["d"].astype(np.float32), words, flat(raw), grid_values("IQ3_XXS"), EVEN_SIGNS, values.reshape(-1))
    return values


@kernel
def _encode(x, importance, tried, tables, room, raw):  # type: ignore[no-untyped-def]
    count = x.size // WEIGHTS
    blocks, memory, (sizes, signs, points, scales, words, targets) = room
    across, weights, zero = blocks[0], blocks[1], every(np.float32(0))
    for first in range(0, count, LANES):
        load_blocks(x, importance, first, np.float32(2), np.float32(0), blocks)
        top = zero
        for g in range(GROUPS):
            fold_signs(across, LANES * GROUP * g, GROUP, weights, True, sizes, signs)
            peak = greatest(sizes, GROUP)
            dead = peak < ZERO_BELOW
            scale = search_group(
                sizes, weights, LANES * GROUP * g, 8, 4, peak, peak / np.float32(15), tried, REFIT_OFF_GRID_CELLS,
                tables, memory, points)
            for k in range(2):
                four = every_int(0)
                for j in range(4):
                    four |= (load(points, LANES * (4 * k + j)) >> 16) << (8 * j)
                store(words, LANES * (2 * g + k), where(dead, every_int(0), four))
            turn, bits = where(scale < zero, every_int(127), 0), every_int(0)
            for k in range(4):
                bits |= (load(signs, LANES * k) ^ turn) << (7 * k)
            store(words, LANES * (16 + g), where(dead, every_int(0), bits))
            scale = where(dead, zero, absolute(scale))
            store(scales, LANES * g, scale)
            top = larger(top, scale)
        inverse = inverse_step(top)
        for g in range(GROUPS):
            at = LANES * (16 + g)
            store(words, at, load(words, at) | scale_levels(scales, g, 1, inverse) << 28)
        block_offsets(first, count, SIZE, targets)
        put_halves(raw, targets, D, to_half(top / np.float32(31) * FUDGE))
        put_all(raw, targets, QS, words, 24)


@kernel
def _decode(
    scales: NDArray[np.float32], scales_and_signs: NDArray[np.uint32], raw: NDArray[np.uint8], grid: NDArray[np.int8],
    signs: NDArray[np.uint8], values: NDArray[np.float32],
) -> None:  # fmt: skip
    for b in range(scales.size):
        for g in range(GROUPS):
            word = np.int64(scales_and_signs[GROUPS * b + g])
            d = scales[b] * (np.float32(0.5) + np.float32(word >> 28)) * np.float32(0.5)
            for k in range(2):
                at = SIZE * b + QS + 8 * g + 4 * k
                points = to_float(four_points(grid, raw[at], raw[at + 1], raw[at + 2], raw[at + 3])) * d
                bits = signs[word >> (14 * k) & 127] | np.int64(signs[word >> (14 * k + 7) & 127]) << 8
                store(values, WEIGHTS * b + GROUP * g + LANES * k, signed(points, bits))
