"""IQ3_S: 256 values; every 4 are a point of a grid of 512 with signs, every 32 have a scale. 3.4375 bits per weight.

    byte   0      2                     66                    74              106                 110
           | d    | qs[64]              | qh[8]               | signs[32]     | scales[4]         |
           | f16  | low 8 bits of index | ninth bits x 8 each | 8 bits each   | 2 x 4 bits each   |

    index k = qs[k] | bit k % 8 of qh[k / 8] << 8; scales: low half first; signs: lowest bit first
    weight[4 * k + i] = d * (1 + 2 * scale k / 8) * GRID[index k][i] * sign,  GRID of 1, 3, 5, 7, 9, 11, 13, 15

Encoder: byte for byte the same as ggml's reference. So it is also where 32 values are all zero: the reference then
forgets to leave room for them, and the indexes and signs of the groups that follow move forward, into places where
the decoder does not look for them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..kernels.blocks import field_offsets, flat, put_all, raw_rows, value_rows
from ..kernels.grid_search import (
    REFIT_IF_OFF_GRID,
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
from ..kernels.grids import four_points, grid_values, signed
from ..kernels.half import to_half
from ..kernels.jit import inlined, kernel
from ..kernels.lane_memory import block_offsets, load, put_halves, put_words, room_for_words, store
from ..kernels.lanes import LANES, absolute, any_lane, every, every_int, larger, to_float, where
from ..kernels.neighbours import neighbours

USES_IMPORTANCE = True
WEIGHTS, GROUP, GROUPS = 256, 32, 8
BLOCK = np.dtype([
    ("d", "<f2"), ("qs", "u1", WEIGHTS // 4), ("qh", "u1", WEIGHTS // 32), ("signs", "u1", WEIGHTS // 8),
    ("scales", "u1", GROUPS // 2),
])  # fmt: skip
SIZE = BLOCK.itemsize
D, QS, QH, SIGNS, SCALES = field_offsets(BLOCK)
STEPS = steps(15, 9, 0.2)
FUDGE = np.float32(1.033)  # of the stored scale, as the reference has it


def encode(rows: NDArray[np.float32], importance: NDArray[np.float32] | None = None) -> NDArray[np.uint8]:
    """float32 (n, width) → uint8 (n, width / 256 * 110).

    Weight of an error: x * x, or importance * sqrt(2 * mean of the block's squares + x * x).
    """
    raw = raw_rows(rows, WEIGHTS, BLOCK)
    near = neighbours("IQ3_S", 3)
    tables = near.entries.reshape(-1), near.codes, near.indexes, odd_levels(4)
    columns = np.empty(0, np.float32) if importance is None else importance
    room, alive = working_memory(4, GROUP, STEPS.size), room_for_words(GROUPS)
    _encode(flat(rows), flat(columns), STEPS, tables, room, alive, raw.reshape(-1))
    return raw


def decode(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """uint8 (n, k * 110) → float32 (n, k * 256)."""
    values = value_rows(raw, WEIGHTS, BLOCK)
    blocks = raw.reshape(-1).view(BLOCK)
    _decode(blocks["d"].astype(np.float32), flat(raw), grid_values("IQ3_S"), values.reshape(-1))
    return values


@inlined
def _close_gaps(words: NDArray[np.int32], alive: NDArray[np.int32]) -> None:
    """Move indexes and signs of later groups to where those of all-zero ones would be."""
    for lane in range(LANES):
        kept = 0
        for g in range(GROUPS):
            if alive[LANES * g + lane]:
                for k in range(2):
                    words[LANES * (2 * kept + k) + lane] = words[LANES * (2 * g + k) + lane]
                words[LANES * (18 + kept) + lane] = words[LANES * (18 + g) + lane]
                kept += 1
        for g in range(kept, GROUPS):
            for k in range(2):
                words[LANES * (2 * g + k) + lane] = 0
            words[LANES * (18 + g) + lane] = 0


@kernel
def _encode(x, importance, tried, tables, room, alive, raw):  # type: ignore[no-untyped-def]
    count = x.size // WEIGHTS
    blocks, memory, (sizes, signs, points, scales, words, targets) = room
    across, weights, zero = blocks[0], blocks[1], every(np.float32(0))
    for first in range(0, count, LANES):
        load_blocks(x, importance, first, np.float32(2), np.float32(0), blocks)
        top, ninth, gaps = zero, every_int(0), False
        for g in range(GROUPS):
            fold_signs(across, LANES * GROUP * g, GROUP, weights, False, sizes, signs)
            peak = greatest(sizes, GROUP)
            dead = peak == zero
            store(alive, LANES * g, where(dead, every_int(0), 1))
            gaps = gaps or any_lane(dead)
            scale = search_group(
                sizes, weights, LANES * GROUP * g, 8, 4, peak, peak / np.float32(15), tried, REFIT_IF_OFF_GRID,
                tables, memory, points)
            for k in range(2):
                four = every_int(0)
                for j in range(4):
                    index = where(dead, every_int(0), load(points, LANES * (4 * k + j)) >> 16)
                    four |= (index & 255) << (8 * j)
                    ninth |= (index >> 8) << (8 * (g % 4) + 4 * k + j)
                store(words, LANES * (2 * g + k), four)
            bits = every_int(0)
            for k in range(4):
                bits |= load(signs, LANES * k) << (8 * k)
            bits ^= where(scale < zero, every_int(-1), 0)
            store(words, LANES * (18 + g), where(dead, every_int(0), bits))
            if g % 4 == 3:
                store(words, LANES * (16 + g // 4), ninth)
                ninth = every_int(0)
            scale = where(dead, zero, absolute(scale))
            store(scales, LANES * g, scale)
            top = larger(top, scale)
        if gaps:
            _close_gaps(words, alive)
        block_offsets(first, count, SIZE, targets)
        put_halves(raw, targets, D, to_half(top / np.float32(31) * FUDGE))
        put_all(raw, targets, QS, words, 26)
        put_words(raw, targets, SCALES, scale_levels(scales, 0, 8, inverse_step(top)))


@kernel
def _decode(
    scales: NDArray[np.float32], raw: NDArray[np.uint8], grid: NDArray[np.int8], values: NDArray[np.float32]
) -> None:
    for b in range(scales.size):
        at = SIZE * b
        for k in range(WEIGHTS // LANES):
            level = raw[at + SCALES + k // 4] >> (2 * (k & 2)) & 15
            d = scales[b] * np.float32(1 + 2 * np.int32(level))
            qs, ninth = at + QS + 4 * k, np.int64(raw[at + QH + k // 2]) << 8 >> (4 * (k & 1))
            points = four_points(
                grid, raw[qs] | ninth & 256, raw[qs + 1] | ninth >> 1 & 256, raw[qs + 2] | ninth >> 2 & 256,
                raw[qs + 3] | ninth >> 3 & 256)
            bits = raw[at + SIGNS + 2 * k] | np.int64(raw[at + SIGNS + 2 * k + 1]) << 8
            store(values, WEIGHTS * b + LANES * k, signed(to_float(points) * d, bits))
