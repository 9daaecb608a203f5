"""IQ1_S and IQ1_M: every 8 values are a point of a grid of 2048 of -1, 0, 1, all moved up or down by an eighth.

The weight of an error: importance * sqrt(2 * mean of the squares + x * x); without importance (IQ1_M) x * x.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..formats.iq1_m import BLOCK as M_BLOCK
from ..formats.iq1_s import BLOCK as S_BLOCK
from .blocks import Bytes, Floats, field_offsets, load_half
from .blocks import Memory as Blocks
from .grid_search import SUPER, Result, Tables, grid_codec, load_weighted, put_result
from .grids import two_points
from .half import from_half
from .iq1_search import (
    DOWN,
    LOWEST,
    UP,
    Memory,
    fit_group,
    gain_above,
    gain_near,
    keep_best,
    number_groups,
    sort_group,
    split_search,
    units,
    weighted_sums,
)
from .jit import inlined, kernel
from .lane_memory import load, rooms, store
from .lanes import LANES, any_lane, every, every_int, lane_numbers, larger, to_float, where

S_GROUP, S_GROUPS, M_GROUP, M_GROUPS = 32, 8, 16, 16
S_BLOCK_BYTES, _, S_QS, S_QH = S_BLOCK.itemsize, *field_offsets(S_BLOCK)
M_BLOCK_BYTES, M_QS, M_QH, M_SCALES = M_BLOCK.itemsize, *field_offsets(M_BLOCK)
S_ZERO_BELOW, M_ZERO_BELOW = np.float32(1e-12), np.float32(1e-7)
S_FUDGE, M_FUDGE = np.float32(1.125), np.float32(1.1125)  # of the stored scale, as llama.cpp has it
# Ways to move the two cells of a group: up up, up down, down up, down down.
# What weights add to a sum of squares of levels when they drop below the second limit, and then below the first.
UP_FIRST, UP_SECOND = UP[0] * UP[0] - UP[1] * UP[1], UP[1] * UP[1] - UP[2] * UP[2]
DOWN_FIRST, DOWN_SECOND = DOWN[0] * DOWN[0] - DOWN[1] * DOWN[1], DOWN[1] * DOWN[1] - DOWN[2] * DOWN[2]


def _fields(name: str, result: Result) -> dict[str, NDArray[Any]]:
    high, levels, downs = result.indexes >> 8, result.levels.astype(np.uint16), result.signs.astype(np.uint16)
    low = {"qs": result.indexes & 255}
    if name == "IQ1_S":
        bits = high[:, ::4] | high[:, 1::4] << 3 | high[:, 2::4] << 6 | high[:, 3::4] << 9
        return low | {"d": result.d.view("<f2"), "qh": bits | levels << 12 | downs[:, ::4] << 15}
    cells = high | downs << 3
    scales = levels[:, ::4] | levels[:, 1::4] << 3 | levels[:, 2::4] << 6 | levels[:, 3::4] << 9
    d = result.d[:, None] >> np.arange(0, 16, 4, dtype=np.uint16) & 15
    return low | {"qh": cells[:, ::2] | cells[:, 1::2] << 4, "scales": scales | d << 12}


@inlined
def _best_split_iq1_s(values, weights, order, sums):  # type: ignore[no-untyped-def]
    """The best split: its gain, scale, 1 if the cells are moved down, and at what places it is."""
    sum_x, sum_w, rest_up, rest_down, square_up, square_down = sums
    zero = every(np.float32(0))
    x, w = zero, zero
    for i in range(S_GROUP):
        store(sum_x, LANES * i, x)
        store(sum_w, LANES * i, w)
        weight = load(weights, LANES * i)
        x, w = x + weight * load(values, LANES * i), w + weight
    store(sum_x, LANES * S_GROUP, x)
    store(sum_w, LANES * S_GROUP, w)
    for i in range(0, LANES * (S_GROUP + 1), LANES):
        store(rest_up, i, (x - load(sum_x, i)) * UP[2])
        store(rest_down, i, (x - load(sum_x, i)) * DOWN[2])
        store(square_up, i, (w - load(sum_w, i)) * UP[2] * UP[2])
        store(square_down, i, (w - load(sum_w, i)) * DOWN[2] * DOWN[2])
    gain, scale, kinds, lows, highs = every(LOWEST), zero, every_int(0), every_int(0), every_int(0)
    for i in range(S_GROUP + 1):
        low = _below_first_iq1_s(sums, i)
        for j in range(i, S_GROUP + 1):
            qx_up, qq_up, qx_down, qq_down = _split_sums_iq1_s(sums, low, j)
            gain, scale, kinds, lows, highs = keep_best(qx_up, qq_up, 0, i, j, gain, scale, kinds, lows, highs)
            gain, scale, kinds, lows, highs = keep_best(qx_down, qq_down, 1, i, j, gain, scale, kinds, lows, highs)
    return gain, scale, kinds, lows, highs


@inlined
def _below_first_iq1_s(sums, i):  # type: ignore[no-untyped-def]
    """What does not depend on the second limit: sums below the first one, alone and times levels."""
    x, w = load(sums[0], LANES * i), load(sums[1], LANES * i)
    return x, w, x * UP[0], x * DOWN[0], w * UP[0] * UP[0], w * DOWN[0] * DOWN[0]


@inlined
def _split_sums_iq1_s(sums, low, j):  # type: ignore[no-untyped-def]
    """Sums of weight * level * x and weight * level * level, for cells moved up and for cells moved down."""
    middle = (load(sums[0], LANES * j) - low[0]) * UP[1]
    middle_square = (load(sums[1], LANES * j) - low[1]) * UP[1] * UP[1]
    return (
        low[2] + middle + load(sums[2], LANES * j), low[4] + middle_square + load(sums[4], LANES * j),
        low[3] - middle + load(sums[3], LANES * j), low[5] + middle_square + load(sums[5], LANES * j),
    )  # fmt: skip


@kernel
def _encode_iq1_s(
    x: Floats, importance: Floats, network: NDArray[np.int64], tables: Tables, blocks: Blocks, memory: Memory,
    result: Result,
) -> None:  # fmt: skip
    for first in range(0, x.size // SUPER, LANES):
        load_weighted(x, importance, first, np.float32(2), np.float32(0), blocks)
        top = every(np.float32(0))
        for g in range(S_GROUPS):
            at, points, downs = LANES * S_GROUP * g, blocks.codes[LANES * 4 * g :], blocks.words[LANES * 4 * g :]
            sort_group(blocks.x, blocks.weights, at, S_GROUP, network, memory.values, memory.weights, memory.order)
            gain, scale, down, lows, highs = _best_split_iq1_s(
                memory.values, memory.weights, memory.order, memory.sums)
            for k in range(0, 4 * LANES, LANES):
                store(downs, k, down)
            scale = fit_group(
                at, S_GROUP, S_ZERO_BELOW, gain, scale, lows, highs, tables, blocks, memory, points, downs)
            store(blocks.scales, LANES * g, scale)
            top = larger(top, scale)
        put_result(number_groups(top, S_GROUPS, blocks) * S_FUDGE, first, 8, S_GROUPS, blocks, result)


@kernel
def _decode_iq1_s(raw: Bytes, grid: NDArray[np.int8], values: Floats) -> None:
    for b in range(raw.size // S_BLOCK_BYTES):
        whole = load_half(raw, S_BLOCK_BYTES * b)
        for g in range(S_GROUPS):
            qh = S_BLOCK_BYTES * b + S_QH + 2 * g
            bits = np.int64(raw[qh]) | np.int64(raw[qh + 1]) << 8
            d = whole * np.float32(2 * (bits >> 12 & 7) + 1)
            delta = DOWN[1] if bits & 0x8000 else UP[1]
            for k in range(2):
                at, high = S_BLOCK_BYTES * b + S_QS + 4 * g + 2 * k, bits >> (6 * k)
                points = two_points(grid, raw[at] | (high & 7) << 8, raw[at + 1] | (high & 0o70) << 5)
                store(values, SUPER * b + S_GROUP * g + LANES * k, (to_float(points) + delta) * d)


@inlined
def _best_split_iq1_m(values, weights, order, sums):  # type: ignore[no-untyped-def]
    """The best split: its gain, scale, which way the cells are moved, and at what places it is.

    sums: scratch; of either cell's weight * x below every place, and what its weights up to the second limit add to the
    sum of squares, moved up and down. As levels are 1 apart, the sum of weight * x * level is that of all values in
    the highest level, less the sums below the two limits.
    """
    zero = every(np.float32(0))
    x, w = (zero, zero), (zero, zero)
    for j in range(M_GROUP + 1):
        for cell in range(2):
            at = LANES * (6 * j + 3 * cell)
            store(sums, at, x[cell])
            store(sums, at + LANES, w[cell])
            store(sums, at + 2 * LANES, w[cell] * DOWN_SECOND)
        if j < M_GROUP:
            weight, in_first = load(weights, LANES * j), load(order, LANES * j) < 8
            product = weight * load(values, LANES * j)
            x = where(in_first, x[0] + product, x[0]), where(in_first, x[1], x[1] + product)
            w = where(in_first, w[0] + weight, w[0]), where(in_first, w[1], w[1] + weight)
    totals = (x[0] * UP[2], x[1] * UP[2], x[0] * DOWN[2], x[1] * DOWN[2])
    squares = (w[0] * UP[2] * UP[2], w[1] * UP[2] * UP[2], w[0] * DOWN[2] * DOWN[2], w[1] * DOWN[2] * DOWN[2])
    unit_x, unit_w = units(values, weights, M_GROUP)
    over, under = -every(np.float32(1)), every(np.float32(1))
    for i in range(M_GROUP + 1):
        low = _below_first_iq1_m(sums, squares, i)
        for j in range(i, M_GROUP + 1):
            qx, qq = _split_sums_iq1_m(sums, totals, low, j)
            over, under = gain_above(over, under, qx[0], qq[0], unit_x, unit_w)
            over, under = gain_above(over, under, qx[1], qq[1], unit_x, unit_w)
            over, under = gain_above(over, under, qx[2], qq[2], unit_x, unit_w)
            over, under = gain_above(over, under, qx[3], qq[3], unit_x, unit_w)
    gain, scale, kinds, lows, highs = every(LOWEST), zero, every_int(0), every_int(0), every_int(0)
    for i in range(M_GROUP + 1):
        low = _below_first_iq1_m(sums, squares, i)
        for j in range(i, M_GROUP + 1):
            qx, qq = _split_sums_iq1_m(sums, totals, low, j)
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
def _below_first_iq1_m(sums, squares, i):  # type: ignore[no-untyped-def]
    """What does not depend on the second limit: sums of both cells, and parts of the sums of squares."""
    at = 6 * LANES * i
    w_a, w_b = load(sums, at + LANES), load(sums, at + 4 * LANES)
    return (
        load(sums, at), load(sums, at + 3 * LANES), squares[0] + w_a * UP_FIRST, squares[1] + w_b * UP_FIRST,
        squares[2] + w_a * DOWN_FIRST, squares[3] + w_b * DOWN_FIRST,
    )  # fmt: skip


@inlined
def _split_sums_iq1_m(sums, totals, low, j):  # type: ignore[no-untyped-def]
    """Sums of weight * level * x and weight * level * level for the four ways to move the cells."""
    at = 6 * LANES * j
    below_a, below_b = low[0] + load(sums, at), low[1] + load(sums, at + 3 * LANES)
    up_a, up_b, down_a, down_b = totals[0] - below_a, totals[1] - below_b, totals[2] - below_a, totals[3] - below_b
    qx = up_a + up_b, up_a + down_b, down_a + up_b, down_a + down_b
    up_a, up_b = low[2] + load(sums, at + LANES) * UP_SECOND, low[3] + load(sums, at + 4 * LANES) * UP_SECOND
    down_a, down_b = low[4] + load(sums, at + 2 * LANES), low[5] + load(sums, at + 5 * LANES)
    return qx, (up_a + up_b, up_a + down_b, down_a + up_b, down_a + down_b)


@kernel
def _encode_iq1_m(
    x: Floats, importance: Floats, network: NDArray[np.int64], tables: Tables, blocks: Blocks, memory: Memory,
    result: Result,
) -> None:  # fmt: skip
    zero = every(np.float32(0))
    for first in range(0, x.size // SUPER, LANES):
        load_weighted(x, importance, first, np.float32(2), np.float32(0), blocks)
        top = zero
        for g in range(M_GROUPS):
            at, points, downs = LANES * M_GROUP * g, blocks.codes[LANES * 2 * g :], blocks.words[LANES * 2 * g :]
            sort_group(blocks.x, blocks.weights, at, M_GROUP, network, memory.values, memory.weights, memory.order)
            gain, scale, move, lows, highs = _best_split_iq1_m(
                memory.values, memory.weights, memory.order, memory.sums)
            store(downs, 0, move >> 1)
            store(downs, LANES, move & 1)
            scale = fit_group(
                at, M_GROUP, M_ZERO_BELOW, gain, scale, lows, highs, tables, blocks, memory, points, downs)
            store(blocks.scales, LANES * g, scale)
            top = larger(top, scale)
        d, qx, qq = number_groups(top, M_GROUPS, blocks), zero, zero
        for g in range(M_GROUPS):
            points, downs = blocks.codes[LANES * 2 * g :], blocks.words[LANES * 2 * g :]
            factor = to_float(load(blocks.scale_codes, LANES * g) * 2 + 1)
            qx, qq = weighted_sums(
                blocks.x, blocks.weights, LANES * M_GROUP * g, 2, points, downs, factor, qx, qq)
        d = where(top > zero, where(qq > zero, qx / qq, d), zero)
        put_result(d * M_FUDGE, first, 8, M_GROUPS, blocks, result)


@kernel
def _decode_iq1_m(raw: Bytes, grid: NDArray[np.int8], values: Floats) -> None:
    first = lane_numbers() < 8
    for b in range(raw.size // M_BLOCK_BYTES):
        scales, half = M_BLOCK_BYTES * b + M_SCALES, 0
        for k in range(4):
            half |= np.int64(raw[scales + 2 * k + 1]) >> 4 << (4 * k)
        d = from_half(every_int(half))
        for g in range(M_GROUPS):
            at, bits = M_BLOCK_BYTES * b + M_QS + 2 * g, np.int64(raw[M_BLOCK_BYTES * b + M_QH + g])
            level = (raw[scales + g // 4 * 2] | np.int64(raw[scales + g // 4 * 2 + 1]) << 8) >> (3 * (g % 4)) & 7
            scale = d * np.float32(2 * level + 1)
            points = two_points(grid, raw[at] | (bits & 7) << 8, raw[at + 1] | (bits & 0x70) << 4)
            low = DOWN[1] if bits & 0x08 else UP[1]
            high = DOWN[1] if bits & 0x80 else UP[1]
            store(values, SUPER * b + M_GROUP * g, (to_float(points) + where(first, every(low), high)) * scale)


SEARCHES = {
    "IQ1_S": split_search(_encode_iq1_s, S_GROUP, lambda: tuple(rooms(*[S_GROUP + 1] * 6))),
    "IQ1_M": split_search(_encode_iq1_m, M_GROUP, lambda: rooms(6 * (M_GROUP + 1))[0]),
}
KERNELS, encode, decode = grid_codec(SEARCHES, {"IQ1_S": _decode_iq1_s, "IQ1_M": _decode_iq1_m}, _fields)
