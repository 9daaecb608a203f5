"""IQ1_M: 256 values; every 8 are a point of a grid of 2048, every 16 have a scale."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..format import Format
from ..formats.iq1_m import BLOCK
from .blocks import Bytes, Floats, field_offsets, flat, put_all, raw_rows, value_rows
from .grid_search import load_blocks
from .grids import grid_values, two_points
from .half import from_half, to_half
from .iq1 import (
    DOWN,
    LOWEST,
    UP,
    cell_numbers,
    choose_points,
    gain_above,
    gain_near,
    greatest_size,
    keep_best,
    meaning,
    meanings,
    sort_group,
    sorting_network,
    split_limits,
    units,
    working_memory,
)
from .jit import inlined, kernel
from .lane_memory import block_offsets, load, room_for_floats, store
from .lanes import (
    LANES,
    Lanes,
    absolute,
    any_lane,
    every,
    every_int,
    lane_numbers,
    larger,
    smaller,
    to_float,
    where,
)
from .neighbours import neighbours
from .rounding import nearest_int

BLOCK_VALUES, GROUP, GROUPS = 256, 16, 16
BLOCK_BYTES = BLOCK.itemsize
QS, QH, SCALES = field_offsets(BLOCK)
ZERO_BELOW = np.float32(1e-7)
FUDGE = np.float32(1.1125)  # of the stored scale, as the reference has it
NETWORK = sorting_network(GROUP)
# Ways to move the two cells of a group: up up, up down, down up, down down.
# What weights add to a sum of squares of levels when they drop below the second limit, and then below the first.
UP_FIRST, UP_SECOND = UP[0] * UP[0] - UP[1] * UP[1], UP[1] * UP[1] - UP[2] * UP[2]
DOWN_FIRST, DOWN_SECOND = DOWN[0] * DOWN[0] - DOWN[1] * DOWN[1], DOWN[1] * DOWN[1] - DOWN[2] * DOWN[2]


def encode(form: Format, rows: Floats, importance: Floats | None) -> Bytes:
    """float32 (n, width) → uint8 (n, width / 256 * 56).

    Weight of an error: x * x, or importance * sqrt(2 * mean of the block's squares + x * x).
    """
    raw = raw_rows(form, rows)
    near = neighbours("IQ1_S", 3)
    tables = near.entries.reshape(-1), near.codes, near.indexes, meanings()
    columns = np.empty(0, np.float32) if importance is None else importance
    room, sums = working_memory(GROUP), room_for_floats(6 * (GROUP + 1))
    _encode(flat(rows), flat(columns), NETWORK, tables, room, sums, raw.reshape(-1))
    return raw


def decode(form: Format, raw: Bytes) -> Floats:
    """uint8 (n, k * 56) → float32 (n, k * 256)."""
    values = value_rows(form, raw)
    scales = np.ascontiguousarray(raw.reshape(-1).view(BLOCK)["scales"])
    _decode(scales.reshape(-1), flat(raw), grid_values("IQ1_S"), values.reshape(-1))
    return values


@inlined
def _best_split(values, weights, order, sums):  # type: ignore[no-untyped-def]
    """The best split: its gain, scale, which way the cells are moved, and at what places it is.

    sums: scratch; of either cell's weight * x below every place, and what its weights up to the second limit add to the
    sum of squares, moved up and down. As levels are 1 apart, the sum of weight * x * level is that of all values in
    the highest level, less the sums below the two limits.
    """
    zero = every(np.float32(0))
    x, w = (zero, zero), (zero, zero)
    for j in range(GROUP + 1):
        for cell in range(2):
            at = LANES * (6 * j + 3 * cell)
            store(sums, at, x[cell])
            store(sums, at + LANES, w[cell])
            store(sums, at + 2 * LANES, w[cell] * DOWN_SECOND)
        if j < GROUP:
            weight, in_first = load(weights, LANES * j), load(order, LANES * j) < 8
            product = weight * load(values, LANES * j)
            x = where(in_first, x[0] + product, x[0]), where(in_first, x[1], x[1] + product)
            w = where(in_first, w[0] + weight, w[0]), where(in_first, w[1], w[1] + weight)
    totals = (x[0] * UP[2], x[1] * UP[2], x[0] * DOWN[2], x[1] * DOWN[2])
    squares = (w[0] * UP[2] * UP[2], w[1] * UP[2] * UP[2], w[0] * DOWN[2] * DOWN[2], w[1] * DOWN[2] * DOWN[2])
    unit_x, unit_w = units(values, weights, GROUP)
    over, under = -every(np.float32(1)), every(np.float32(1))
    for i in range(GROUP + 1):
        low = _below_first(sums, squares, i)
        for j in range(i, GROUP + 1):
            qx, qq = _split_sums(sums, totals, low, j)
            over, under = gain_above(over, under, qx[0], qq[0], unit_x, unit_w)
            over, under = gain_above(over, under, qx[1], qq[1], unit_x, unit_w)
            over, under = gain_above(over, under, qx[2], qq[2], unit_x, unit_w)
            over, under = gain_above(over, under, qx[3], qq[3], unit_x, unit_w)
    gain, scale, kinds, lows, highs = every(LOWEST), zero, every_int(0), every_int(0), every_int(0)
    for i in range(GROUP + 1):
        low = _below_first(sums, squares, i)
        for j in range(i, GROUP + 1):
            qx, qq = _split_sums(sums, totals, low, j)
            near = gain_near(over, under, qx[0], qq[0], unit_x, unit_w)
            near |= gain_near(over, under, qx[1], qq[1], unit_x, unit_w)
            near |= gain_near(over, under, qx[2], qq[2], unit_x, unit_w)
            near |= gain_near(over, under, qx[3], qq[3], unit_x, unit_w)
            if any_lane(near):
                gain, scale, kinds, lows, highs = keep_best(
                    qx[0], qq[0], 0, i, j, gain, scale, kinds, lows, highs)
                gain, scale, kinds, lows, highs = keep_best(
                    qx[1], qq[1], 1, i, j, gain, scale, kinds, lows, highs)
                gain, scale, kinds, lows, highs = keep_best(
                    qx[2], qq[2], 2, i, j, gain, scale, kinds, lows, highs)
                gain, scale, kinds, lows, highs = keep_best(
                    qx[3], qq[3], 3, i, j, gain, scale, kinds, lows, highs)
    return gain, scale, kinds, lows, highs


@inlined
def _below_first(sums, squares, i):  # type: ignore[no-untyped-def]
    """What does not depend on the second limit: sums of both cells, and parts of the sums of squares."""
    at = 6 * LANES * i
    w_a, w_b = load(sums, at + LANES), load(sums, at + 4 * LANES)
    return (
        load(sums, at), load(sums, at + 3 * LANES), squares[0] + w_a * UP_FIRST, squares[1] + w_b * UP_FIRST,
        squares[2] + w_a * DOWN_FIRST, squares[3] + w_b * DOWN_FIRST,
    )  # fmt: skip


@inlined
def _split_sums(sums, totals, low, j):  # type: ignore[no-untyped-def]
    """Sums of weight * level * x and weight * level * level for the four ways to move the cells."""
    at = 6 * LANES * j
    below_a, below_b = low[0] + load(sums, at), low[1] + load(sums, at + 3 * LANES)
    up_a, up_b, down_a, down_b = totals[0] - below_a, totals[1] - below_b, totals[2] - below_a, totals[3] - below_b
    qx = up_a + up_b, up_a + down_b, down_a + up_b, down_a + down_b
    up_a, up_b = low[2] + load(sums, at + LANES) * UP_SECOND, low[3] + load(sums, at + 4 * LANES) * UP_SECOND
    down_a, down_b = low[4] + load(sums, at + 2 * LANES), low[5] + load(sums, at + 5 * LANES)
    return qx, (up_a + up_b, up_a + down_b, down_a + up_b, down_a + down_b)


@inlined
def _cell_down(move: Lanes, cell: int) -> Lanes:
    """1 where the move takes the first or second cell of a group down."""
    return (move >> (1 - cell)) & 1


@kernel
def _encode(x, importance, network, tables, room, sums, raw):  # type: ignore[no-untyped-def]
    count = x.size // BLOCK_VALUES
    blocks, in_order, search, of_group, of_blocks = room
    (values, carried, order), (floats, ints, start, errors), (points, downs, off_grid) = in_order, search, of_group
    scales, moves, chosen, words, targets = of_blocks
    across, weights, zero = blocks[0], blocks[1], every(np.float32(0))
    for block in range(0, count, LANES):
        load_blocks(x, importance, block, np.float32(2), np.float32(0), blocks)
        top = zero
        for g in range(GROUPS):
            at = LANES * GROUP * g
            sort_group(across, weights, at, GROUP, network, values, carried, order)
            gain, scale, move, lows, highs = _best_split(values, carried, order, sums)
            split_limits(values, order, lows, highs, floats, ints)
            dead = (greatest_size(across, at, GROUP) < ZERO_BELOW) | (gain == LOWEST)
            mirrored = scale < zero
            scale, move = absolute(scale), where(mirrored, every_int(3) - move, move)
            store(downs, 0, _cell_down(move, 0))
            store(downs, LANES, _cell_down(move, 1))
            store(start, 0, scale)
            cell_numbers(across, weights, at, GROUP, floats, ints, mirrored, scale, downs, points)
            choose_points(across, weights, at, 2, start, downs, tables, errors, points, off_grid)
            qx, qq = zero, zero
            for k in range(2):
                for i in range(8):
                    j = at + LANES * (8 * k + i)
                    q = meaning(load(points, LANES * k), i, _cell_down(move, k) == 1)
                    qx, qq = qx + load(weights, j) * q * load(across, j), qq + load(weights, j) * q * q
                store(chosen, LANES * (2 * g + k), where(dead, every_int(0), load(points, LANES * k)))
            fit = (load(off_grid, 0) != 0) & (qx > zero) & (qq > zero)
            scale = where(dead, zero, where(fit, qx / qq, scale))
            store(scales, LANES * g, scale)
            store(moves, LANES * g, where(dead, every_int(0), move))
            top = larger(top, scale)
        d = top / np.float32(15)
        inverse = where(top > zero, np.float32(1) / d, zero)
        qx, qq, blank = zero, zero, top == zero
        for i in range(14):
            store(words, LANES * i, every_int(0))
        for g in range(GROUPS):
            level = nearest_int(np.float32(0.5) * (inverse * load(scales, LANES * g) - np.float32(1)))
            level = larger(every_int(0), smaller(every_int(7), level))
            move, high = load(moves, LANES * g), every_int(0)
            for k in range(2):
                point, down = load(chosen, LANES * (2 * g + k)), _cell_down(move, k)
                for i in range(8):
                    j = LANES * (GROUP * g + 8 * k + i)
                    q = meaning(point, i, down == 1) * to_float(level * 2 + 1)
                    qx, qq = qx + load(weights, j) * q * load(across, j), qq + load(weights, j) * q * q
                index = point >> 16
                at = LANES * (g // 2)
                store(words, at, load(words, at) | (index & 255) << (16 * (g % 2) + 8 * k))
                high |= (index >> 8 | where(blank, every_int(0), down) << 3) << (4 * k)
            at = LANES * (8 + g // 4)
            store(words, at, load(words, at) | high << (8 * (g % 4)))
            at = LANES * (12 + g // 8)
            store(words, at, load(words, at) | level << (16 * (g // 4 % 2) + 3 * (g % 4)))
        d = where(blank, zero, where(qq > zero, qx / qq, d))
        half = to_half(d * FUDGE)
        for k in range(4):
            at = LANES * (12 + k // 2)
            store(words, at, load(words, at) | (half >> (4 * k) & 15) << (12 + 16 * (k % 2)))
        block_offsets(block, count, BLOCK_BYTES, targets)
        put_all(raw, targets, QS, words, 14)


@kernel
def _decode(
    scales: NDArray[np.uint16], raw: Bytes, grid: NDArray[np.int8], values: Floats
) -> None:
    first = lane_numbers() < 8
    for b in range(scales.size // 4):
        half = 0
        for k in range(4):
            half |= scales[4 * b + k] >> 12 << (4 * k)
        d = from_half(every_int(half))
        for g in range(GROUPS):
            at, bits = BLOCK_BYTES * b + QS + 2 * g, np.int64(raw[BLOCK_BYTES * b + QH + g])
            level = scales[4 * b + g // 4] >> (3 * (g % 4)) & 7
            scale = d * np.float32(2 * np.int32(level) + 1)
            points = two_points(grid, raw[at] | (bits & 7) << 8, raw[at + 1] | (bits & 0x70) << 4)
            low = DOWN[1] if bits & 0x08 else UP[1]
            high = DOWN[1] if bits & 0x80 else UP[1]
            store(values, BLOCK_VALUES * b + GROUP * g, (to_float(points) + where(first, every(low), high)) * scale)
