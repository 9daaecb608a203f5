"""IQ2_XS: 256 values; every 8 are a point of a grid of 512 with signs, every 16 have a scale."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..format import Format
from ..formats.iq2_xs import BLOCK
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
from .grids import EVEN_SIGNS, grid_values, signed, two_points
from .half import to_half
from .jit import kernel
from .lane_memory import block_offsets, load, put_halves, put_words, store
from .lanes import LANES, absolute, every, every_int, larger, to_float, where
from .neighbours import neighbours

BLOCK_VALUES, GROUP, GROUPS = 256, 16, 16
BLOCK_BYTES = BLOCK.itemsize
D, QS, SCALES = field_offsets(BLOCK)
ZERO_BELOW = np.float32(1e-15)
STEPS = steps(5, 9, 0.1)


def encode(form: Format, rows: Floats, importance: Floats) -> Bytes:
    """float32 (n, width) → uint8 (n, width / 256 * 74).

    Weight of an error: importance * sqrt(mean of the block's squares + x * x).
    """
    raw = raw_rows(form, rows)
    near = neighbours("IQ2_XS", 2)
    tables = near.entries.reshape(-1), near.codes, near.indexes, odd_levels(8)
    _encode(flat(rows), flat(importance), STEPS, tables, working_memory(8, GROUP, STEPS.size), raw.reshape(-1))
    return raw


def decode(form: Format, raw: Bytes) -> Floats:
    """uint8 (n, k * 74) → float32 (n, k * 256)."""
    values = value_rows(form, raw)
    blocks = raw.reshape(-1).view(BLOCK)
    _decode(blocks["d"].astype(np.float32), flat(raw), grid_values("IQ2_XS"), EVEN_SIGNS, values.reshape(-1))
    return values


@kernel
def _encode(x, importance, tried, tables, room, raw):  # type: ignore[no-untyped-def]
    count = x.size // BLOCK_VALUES
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
        block_offsets(first, count, BLOCK_BYTES, targets)
        put_halves(raw, targets, D, to_half(top / np.float32(31)))
        put_all(raw, targets, QS, words, GROUPS)
        put_words(raw, targets, SCALES, scale_levels(scales, 0, 8, inverse))
        put_words(raw, targets, SCALES + 4, scale_levels(scales, 8, 8, inverse))


@kernel
def _decode(
    scales: Floats, raw: Bytes, grid: NDArray[np.int8], signs: Bytes,
    values: Floats,
) -> None:  # fmt: skip
    for b in range(scales.size):
        for g in range(GROUPS):
            at = BLOCK_BYTES * b + QS + 4 * g
            low = np.int64(raw[at]) | np.int64(raw[at + 1]) << 8
            high = np.int64(raw[at + 2]) | np.int64(raw[at + 3]) << 8
            level = raw[BLOCK_BYTES * b + SCALES + g // 2] >> (4 * (g & 1)) & 15
            d = scales[b] * (np.float32(0.5) + np.float32(level)) * np.float32(0.25)
            points = to_float(two_points(grid, low & 511, high & 511)) * d
            bits = signs[low >> 9] | np.int64(signs[high >> 9]) << 8
            store(values, BLOCK_VALUES * b + GROUP * g, signed(points, bits))
