"""IQ2_XXS: 256 values; every 8 are a point of a grid of 256 with signs, every 32 have a scale."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..format import Format
from ..formats.iq2_xxs import BLOCK
from .blocks import Bytes, Floats, field_offsets, flat, put_all, raw_rows, value_rows
from .grid_search import (
    REFIT_ALWAYS,
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
from .jit import inlined, kernel
from .lane_memory import block_offsets, load, put_halves, room_for_words, store
from .lanes import LANES, Lanes, absolute, any_lane, every, every_int, larger, smaller, to_float, where
from .neighbours import neighbours
from .rounding import nearest_int

BLOCK_VALUES, GROUP, GROUPS = 256, 32, 8
BLOCK_BYTES = BLOCK.itemsize
D, QS = field_offsets(BLOCK)
ZERO_BELOW = np.float32(1e-15)
STEPS = steps(5, 6, 0.1)
TOP_LEVEL = 4  # of the even levels that the first estimate of the scale uses
TRIED = tuple(np.float32(0.1) * np.float32(i) for i in range(-4, 5) if i)


def encode(form: Format, rows: Floats, importance: Floats) -> Bytes:
    """float32 (n, width) → uint8 (n, width / 256 * 66).

    Weight of an error: importance * sqrt(mean of the block's squares + x * x).
    """
    raw = raw_rows(form, rows)
    near = neighbours("IQ2_XXS", 2)
    tables = near.entries.reshape(-1), near.codes, near.indexes, odd_levels(8)
    room, levels = working_memory(8, GROUP, STEPS.size), room_for_words(GROUP)
    _encode(flat(rows), flat(importance), STEPS, tables, room, levels, raw.reshape(-1))
    return raw


def decode(form: Format, raw: Bytes) -> Floats:
    """uint8 (n, k * 66) → float32 (n, k * 256)."""
    values = value_rows(form, raw)
    blocks = raw.reshape(-1).view(BLOCK)
    words = np.ascontiguousarray(blocks["qs"]).view("<u4").reshape(-1)
    _decode(blocks["d"].astype(np.float32), words, grid_values("IQ2_XXS"), EVEN_SIGNS, values.reshape(-1))
    return values


@inlined
def _even_scale(
    x: Floats, weights: Floats, at: int, peak: Lanes, levels: NDArray[np.int32]
) -> Lanes:
    """A scale s of small weighted error for x ≈ s * (0 … 4), by some tries, then moving one level at a time."""
    zero, most = every(np.float32(0)), np.float32(TOP_LEVEL)
    inverse = most / peak
    step = np.float32(1) / inverse
    best = zero
    for i in range(0, LANES * GROUP, LANES):
        v = load(x, i)
        difference = v - step * to_float(nearest_int(inverse * v) & 255)  # levels are bytes, negative ones wrap
        best += load(weights, at + i) * difference * difference
    for k in range(len(TRIED)):
        tried = (TRIED[k] + most) / peak
        step, error = np.float32(1) / tried, zero
        for i in range(0, LANES * GROUP, LANES):
            v = load(x, i)
            difference = v - step * to_float(smaller(every_int(TOP_LEVEL), nearest_int(tried * v)))
            error += load(weights, at + i) * difference * difference
        inverse, best = where(error < best, tried, inverse), smaller(error, best)
    sum_lx, sum_ll = zero, zero
    for i in range(0, LANES * GROUP, LANES):
        v, w = load(x, i), load(weights, at + i)
        level = smaller(every_int(TOP_LEVEL), nearest_int(inverse * v))
        store(levels, i, level & 255)
        sum_lx, sum_ll = sum_lx + w * v * to_float(level), sum_ll + w * to_float(level) * to_float(level)
    for _ in range(5):
        moved = 0
        for i in range(0, LANES * GROUP, LANES):
            v, w, level = load(x, i), load(weights, at + i), load(levels, i)
            rest_lx = sum_lx - w * v * to_float(level)
            rest_ll = sum_ll - w * to_float(level) * to_float(level)
            other = smaller(every_int(TOP_LEVEL), nearest_int(v * rest_ll / rest_lx))
            new_lx = rest_lx + w * v * to_float(other)
            new_ll = rest_ll + w * to_float(other) * to_float(other)
            move = (rest_lx > zero) & (rest_ll > zero) & (other != level)
            move = move & (new_lx * new_lx * sum_ll > sum_lx * sum_lx * new_ll)
            if any_lane(move):
                moved = 1
                store(levels, i, where(move, other & 255, level))
                sum_lx, sum_ll = where(move, new_lx, sum_lx), where(move, new_ll, sum_ll)
        if moved == 0:
            break
    return where(sum_ll > zero, sum_lx / sum_ll, zero)


@kernel
def _encode(x, importance, tried, tables, room, levels, raw):  # type: ignore[no-untyped-def]
    count = x.size // BLOCK_VALUES
    blocks, memory, (sizes, signs, points, scales, words, targets) = room
    across, weights, zero = blocks[0], blocks[1], every(np.float32(0))
    for first in range(0, count, LANES):
        load_blocks(x, importance, first, np.float32(1), np.float32(0), blocks)
        top = zero
        for g in range(GROUPS):
            at = LANES * GROUP * g
            fold_signs(across, at, GROUP, weights, True, sizes, signs)
            peak = greatest(sizes, GROUP)
            start = _even_scale(sizes, weights, at, peak, levels)
            dead = (peak < ZERO_BELOW) | (start * np.float32(3) <= zero)
            scale = search_group(
                sizes, weights, at, 4, 8, start * np.float32(3), start, tried, REFIT_ALWAYS, tables, memory, points)
            turn = where(scale < zero, every_int(127), 0)
            indexes, bits = every_int(0), every_int(0)
            for k in range(4):
                indexes |= (load(points, LANES * k) >> 16) << (8 * k)
                bits |= (load(signs, LANES * k) ^ turn) << (7 * k)
            store(words, LANES * (2 * g), where(dead, every_int(0), indexes))
            store(words, LANES * (2 * g + 1), where(dead, every_int(0), bits))
            scale = where(dead, zero, absolute(scale))
            store(scales, LANES * g, scale)
            top = larger(top, scale)
        inverse = inverse_step(top)
        for g in range(GROUPS):
            at = LANES * (2 * g + 1)
            store(words, at, load(words, at) | scale_levels(scales, g, 1, inverse) << 28)
        block_offsets(first, count, BLOCK_BYTES, targets)
        put_halves(raw, targets, D, to_half(top / np.float32(31)))
        put_all(raw, targets, QS, words, 16)


@kernel
def _decode(
    scales: Floats, words: NDArray[np.uint32], grid: NDArray[np.int8], signs: Bytes,
    values: Floats,
) -> None:  # fmt: skip
    for b in range(scales.size):
        for g in range(GROUPS):
            indexes, rest = np.int64(words[2 * (GROUPS * b + g)]), np.int64(words[2 * (GROUPS * b + g) + 1])
            d = scales[b] * (np.float32(0.5) + np.float32(rest >> 28)) * np.float32(0.25)
            for k in range(2):
                points = to_float(two_points(grid, indexes >> (16 * k) & 255, indexes >> (16 * k + 8) & 255)) * d
                bits = signs[rest >> (14 * k) & 127] | np.int64(signs[rest >> (14 * k + 7) & 127]) << 8
                store(values, BLOCK_VALUES * b + GROUP * g + LANES * k, signed(points, bits))
