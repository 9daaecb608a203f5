"""IQ3_S: 256 values; every 4 are a point of a grid of 512 with signs, every 32 have a scale."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..format import Format
from ..formats.iq3_s import BLOCK
from .blocks import Bytes, Floats, field_offsets, flat, put_all, raw_rows, value_rows
from .grid_search import (
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
from .grids import four_points, grid_values, signed
from .half import to_half
from .jit import inlined, kernel
from .lane_memory import block_offsets, load, put_halves, put_words, room_for_words, store
from .lanes import LANES, absolute, any_lane, every, every_int, larger, to_float, where
from .neighbours import neighbours

BLOCK_VALUES, GROUP, GROUPS = 256, 32, 8
BLOCK_BYTES = BLOCK.itemsize
D, QS, QH, SIGNS, SCALES = field_offsets(BLOCK)
STEPS = steps(15, 9, 0.2)
FUDGE = np.float32(1.033)  # of the stored scale, as the reference has it


def encode(form: Format, rows: Floats, importance: Floats | None) -> Bytes:
    """float32 (n, width) → uint8 (n, width / 256 * 110).

    Weight of an error: x * x, or importance * sqrt(2 * mean of the block's squares + x * x).
    """
    raw = raw_rows(form, rows)
    near = neighbours("IQ3_S", 3)
    tables = near.entries.reshape(-1), near.codes, near.indexes, odd_levels(4)
    columns = np.empty(0, np.float32) if importance is None else importance
    room, alive = working_memory(4, GROUP, STEPS.size), room_for_words(GROUPS)
    _encode(flat(rows), flat(columns), STEPS, tables, room, alive, raw.reshape(-1))
    return raw


def decode(form: Format, raw: Bytes) -> Floats:
    """uint8 (n, k * 110) → float32 (n, k * 256)."""
    values = value_rows(form, raw)
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
    count = x.size // BLOCK_VALUES
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
        block_offsets(first, count, BLOCK_BYTES, targets)
        put_halves(raw, targets, D, to_half(top / np.float32(31) * FUDGE))
        put_all(raw, targets, QS, words, 26)
        put_words(raw, targets, SCALES, scale_levels(scales, 0, 8, inverse_step(top)))


@kernel
def _decode(
    scales: Floats, raw: Bytes, grid: NDArray[np.int8], values: Floats
) -> None:
    for b in range(scales.size):
        at = BLOCK_BYTES * b
        for k in range(BLOCK_VALUES // LANES):
            level = raw[at + SCALES + k // 4] >> (2 * (k & 2)) & 15
            d = scales[b] * np.float32(1 + 2 * np.int32(level))
            qs, ninth = at + QS + 4 * k, np.int64(raw[at + QH + k // 2]) << 8 >> (4 * (k & 1))
            points = four_points(
                grid, raw[qs] | ninth & 256, raw[qs + 1] | ninth >> 1 & 256, raw[qs + 2] | ninth >> 2 & 256,
                raw[qs + 3] | ninth >> 3 & 256)
            bits = raw[at + SIGNS + 2 * k] | np.int64(raw[at + SIGNS + 2 * k + 1]) << 8
            store(values, BLOCK_VALUES * b + LANES * k, signed(to_float(points) * d, bits))
