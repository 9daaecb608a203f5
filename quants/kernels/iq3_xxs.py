"""IQ3_XXS: 256 values; every 4 are a point of a grid of 256 with signs, every 32 have a scale."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..format import Format
from ..formats.iq3_xxs import BLOCK
from .blocks import Bytes, Floats, field_offsets, flat, put_all, raw_rows, value_rows
from .grid_search import (
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
from .grids import EVEN_SIGNS, four_points, grid_values, signed
from .half import to_half
from .jit import kernel
from .lane_memory import block_offsets, load, put_halves, store
from .lanes import LANES, absolute, every, every_int, larger, to_float, where
from .neighbours import neighbours

BLOCK_VALUES, GROUP, GROUPS = 256, 32, 8
BLOCK_BYTES = BLOCK.itemsize
D, QS, SCALES_AND_SIGNS = field_offsets(BLOCK)
ZERO_BELOW = np.float32(1e-8)
STEPS = steps(15, 15, 0.2)
FUDGE = np.float32(1.0125)  # of the stored scale, as the reference has it


def encode(form: Format, rows: Floats, importance: Floats | None) -> Bytes:
    """float32 (n, width) → uint8 (n, width / 256 * 98).

    Weight of an error: x * x, or importance * sqrt(2 * mean of the block's squares + x * x).
    """
    raw = raw_rows(form, rows)
    near = neighbours("IQ3_XXS", 2)
    tables = near.entries.reshape(-1), near.codes, near.indexes, odd_levels(4)
    columns = np.empty(0, np.float32) if importance is None else importance
    _encode(flat(rows), flat(columns), STEPS, tables, working_memory(4, GROUP, STEPS.size), raw.reshape(-1))
    return raw


def decode(form: Format, raw: Bytes) -> Floats:
    """uint8 (n, k * 98) → float32 (n, k * 256)."""
    values = value_rows(form, raw)
    blocks = raw.reshape(-1).view(BLOCK)
    words = np.ascontiguousarray(blocks["scales_and_signs"]).reshape(-1)
    _decode(blocks["d"].astype(np.float32), words, flat(raw), grid_values("IQ3_XXS"), EVEN_SIGNS, values.reshape(-1))
    return values


@kernel
def _encode(x, importance, tried, tables, room, raw):  # type: ignore[no-untyped-def]
    count = x.size // BLOCK_VALUES
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
        block_offsets(first, count, BLOCK_BYTES, targets)
        put_halves(raw, targets, D, to_half(top / np.float32(31) * FUDGE))
        put_all(raw, targets, QS, words, 24)


@kernel
def _decode(
    scales: Floats, scales_and_signs: NDArray[np.uint32], raw: Bytes, grid: NDArray[np.int8],
    signs: Bytes, values: Floats,
) -> None:  # fmt: skip
    for b in range(scales.size):
        for g in range(GROUPS):
            word = np.int64(scales_and_signs[GROUPS * b + g])
            d = scales[b] * (np.float32(0.5) + np.float32(word >> 28)) * np.float32(0.5)
            for k in range(2):
                at = BLOCK_BYTES * b + QS + 8 * g + 4 * k
                points = to_float(four_points(grid, raw[at], raw[at + 1], raw[at + 2], raw[at + 3])) * d
                bits = signs[word >> (14 * k) & 127] | np.int64(signs[word >> (14 * k + 7) & 127]) << 8
                store(values, BLOCK_VALUES * b + GROUP * g + LANES * k, signed(points, bits))
