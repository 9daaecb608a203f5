"""IQ2_S: 256 values; every 8 are a point of a grid of 1024 with signs, every 16 have a scale."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..format import Format
from ..formats.iq2_s import BLOCK
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
from .grids import grid_values, signed, two_points
from .half import to_half
from .jit import kernel
from .lane_memory import block_offsets, load, put_halves, put_words, store
from .lanes import LANES, absolute, every, every_int, larger, to_float, where
from .neighbours import neighbours

BLOCK_VALUES, GROUP, GROUPS = 256, 16, 16
BLOCK_BYTES = BLOCK.itemsize
D, QS, SIGNS, QH, SCALES = field_offsets(BLOCK)
ZERO_BELOW = np.float32(1e-8)
STEPS = steps(5, 9, 0.1)
FUDGE = np.float32(0.9875)  # of the stored scale, as the reference has it


def encode(form: Format, rows: Floats, importance: Floats | None) -> Bytes:
    """float32 (n, width) → uint8 (n, width / 256 * 82).

    Weight of an error: mean / 2 + x * x, or importance * sqrt(2 * mean + x * x), mean of the block's squares.
    """
    raw = raw_rows(form, rows)
    near = neighbours("IQ2_S", 1)
    tables = near.entries.reshape(-1), near.codes, near.indexes, odd_levels(8)
    columns = np.empty(0, np.float32) if importance is None else importance
    _encode(flat(rows), flat(columns), STEPS, tables, working_memory(8, GROUP, STEPS.size), raw.reshape(-1))
    return raw


def decode(form: Format, raw: Bytes) -> Floats:
    """uint8 (n, k * 82) → float32 (n, k * 256)."""
    values = value_rows(form, raw)
    blocks = raw.reshape(-1).view(BLOCK)
    _decode(blocks["d"].astype(np.float32), flat(raw), grid_values("IQ2_S"), values.reshape(-1))
    return values


@kernel
def _encode(x, importance, tried, tables, room, raw):  # type: ignore[no-untyped-def]
    count = x.size // BLOCK_VALUES
    blocks, memory, (sizes, signs, points, scales, words, targets) = room
    across, weights, zero = blocks[0], blocks[1], every(np.float32(0))
    for first in range(0, count, LANES):
        load_blocks(x, importance, first, np.float32(2), np.float32(0.5), blocks)
        top = zero
        low_word, sign_word, high_word = every_int(0), every_int(0), every_int(0)
        for g in range(GROUPS):
            fold_signs(across, LANES * GROUP * g, GROUP, weights, False, sizes, signs)
            peak = greatest(sizes, GROUP)
            dead = peak < ZERO_BELOW
            scale = search_group(
                sizes, weights, LANES * GROUP * g, 2, 8, peak, peak / np.float32(5), tried, REFIT_OFF_GRID_CELLS,
                tables, memory, points)
            turn = where(scale < zero, every_int(0xFFFF), 0)
            index_a, index_b = load(points, 0) >> 16, load(points, LANES) >> 16
            low = (index_a & 255) | (index_b & 255) << 8
            high = (index_a >> 8) | (index_b >> 8) << 2
            both = (load(signs, 0) | load(signs, LANES) << 8) ^ turn
            k = g % 2
            low_word |= where(dead, every_int(0), low) << (16 * k)
            sign_word |= where(dead, every_int(0), both) << (16 * k)
            high_word |= where(dead, every_int(0), high) << (4 * (g % 8))
            if g % 2 == 1:
                store(words, LANES * (g // 2), low_word)
                store(words, LANES * (8 + g // 2), sign_word)
                low_word, sign_word = every_int(0), every_int(0)
            if g % 8 == 7:
                store(words, LANES * (16 + g // 8), high_word)
                high_word = every_int(0)
            scale = where(dead, zero, absolute(scale))
            store(scales, LANES * g, scale)
            top = larger(top, scale)
        inverse = inverse_step(top)
        block_offsets(first, count, BLOCK_BYTES, targets)
        put_halves(raw, targets, D, to_half(top / np.float32(31) * FUDGE))
        put_all(raw, targets, QS, words, 18)
        put_words(raw, targets, SCALES, scale_levels(scales, 0, 8, inverse))
        put_words(raw, targets, SCALES + 4, scale_levels(scales, 8, 8, inverse))


@kernel
def _decode(
    scales: Floats, raw: Bytes, grid: NDArray[np.int8], values: Floats
) -> None:
    for b in range(scales.size):
        at = BLOCK_BYTES * b
        for g in range(GROUPS):
            k, ninth = 2 * g, np.int64(raw[at + QH + g // 2]) >> (4 * (g & 1))
            low, high = raw[at + QS + k] | (ninth & 3) << 8, raw[at + QS + k + 1] | (ninth & 12) << 6
            level = raw[at + SCALES + g // 2] >> (4 * (g & 1)) & 15
            d = scales[b] * (np.float32(0.5) + np.float32(level)) * np.float32(0.25)
            bits = raw[at + SIGNS + k] | np.int64(raw[at + SIGNS + k + 1]) << 8
            store(values, BLOCK_VALUES * b + GROUP * g, signed(to_float(two_points(grid, low, high)) * d, bits))
