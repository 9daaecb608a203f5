"""IQ1_S and IQ1_M: every 8 values are a point of a grid of 2048 of -1, 0, 1, all moved up or down by an eighth.

The weight of an error: importance * sqrt(2 * mean of the squares + x * x); without importance (IQ1_M) x * x.
With values in ascending order, the best levels for any scale are a split of the order in three; all splits are tried.
"""

import itertools
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..formats.iq1_m import BLOCK as M_BLOCK
from ..formats.iq1_s import BLOCK as S_BLOCK
from .blocks import Bytes, Floats, Words, field_offsets, load_half
from .blocks import Memory as Blocks
from .grid_search import (
    DOUBT,
    DOUBTFUL,
    LONGEST_LIST,
    POWERS,
    SUPER,
    Result,
    Search,
    Tables,
    grid_codec,
    list_of,
    load_weighted,
    nearest_point,
    number_scales,
    put_result,
)
from .grids import two_points
from .half import from_half
from .jit import inlined, kernel
from .lane_memory import load, rooms, store
from .lanes import LANES, Lanes, absolute, any_lane, every, every_int, lane_numbers, larger, to_float, where, with_sign

S_GROUP, S_GROUPS, M_GROUP, M_GROUPS = 32, 8, 16, 16
S_BLOCK_BYTES, _, S_QS, S_QH = S_BLOCK.itemsize, *field_offsets(S_BLOCK)
M_BLOCK_BYTES, M_QS, M_QH, M_SCALES = M_BLOCK.itemsize, *field_offsets(M_BLOCK)
CELLS = 32  # of 8 values in a super-block
# Values of the levels 0, 1, 2 in a cell that is moved up, and in one moved down.
UP = (np.float32(-0.875), np.float32(0.125), np.float32(1.125))
DOWN = (np.float32(-1.125), np.float32(-0.125), np.float32(0.875))
LOWEST = np.float32(np.finfo(np.float32).min)
NEARLY = np.float32(1 - 1e-4)
VANISHING = np.float32(1e-30)
Split = tuple[Lanes, Lanes, Lanes, Lanes, Lanes]  # gain, scale, how cells are moved, positions of the limits
# Ways to move the two cells of a group: up up, up down, down up, down down. Then what weights add to a sum of squares
# of levels when they drop below the second limit, and below the first.
UP_FIRST, UP_SECOND = UP[0] * UP[0] - UP[1] * UP[1], UP[1] * UP[1] - UP[2] * UP[2]
DOWN_FIRST, DOWN_SECOND = DOWN[0] * DOWN[0] - DOWN[1] * DOWN[1], DOWN[1] * DOWN[1] - DOWN[2] * DOWN[2]


def sorting_network(count: int) -> NDArray[np.int64]:
    """Return Batcher's odd-even merge sort: int64 (steps, 2), pairs of positions to compare and order, one after the
    other.
    """
    steps = []
    for width in (1 << k for k in range(count.bit_length() - 1)):
        for gap in (width >> k for k in range(width.bit_length())):
            starts = range(gap % width, count - gap, 2 * gap)
            for at, i in itertools.product(starts, range(gap)):
                if (at + i) // (2 * width) == (at + i + gap) // (2 * width):
                    steps.append((at + i, at + i + gap))
    return np.array(steps)


class Memory(NamedTuple):
    """Arrays of the search of a group."""

    values: Floats  # sorted
    weights: Floats  # weights of the sorted values
    sums: Floats  # six sums at every position
    limits: Floats  # of a split
    scale: Floats
    errors: Floats  # of neighbours
    order: Words  # original positions
    places: Words  # positions of limits
    off_grid: Words


def _memory(group: int) -> Memory:
    places = group + 1
    floats, words = rooms(places, places, 6 * places, 2, 1, LONGEST_LIST // LANES), rooms(places, 2, 1)
    return Memory._make([*floats, *(array.view(np.int32) for array in words)])


@inlined
def _fit_group(
    at: int,
    count: int,
    zero_below: np.float32,
    split: Split,
    tables: Tables,
    blocks: Blocks,
    memory: Memory,
    points: Words,
    downs: Words,
) -> Lanes:
    """Return the scale and the points of a group of `count` values for a known split. downs: as the split has it."""
    x, weights, zero, cells = blocks.x, blocks.weights, every(np.float32(0)), count // 8
    gain, scale, _, lows, highs = split
    _split_limits(memory.values, memory.order, lows, highs, memory.limits, memory.places)
    dead = (_greatest_size(x, at, count) < zero_below) | (gain == LOWEST)
    mirrored = scale < zero
    scale = absolute(scale)
    for k in range(0, LANES * cells, LANES):
        store(downs, k, where(mirrored, every_int(1) - load(downs, k), load(downs, k)))
    store(memory.scale, 0, scale)
    _cell_numbers(x, weights, at, count, memory.limits, memory.places, mirrored, scale, downs, points)
    _choose_points(x, weights, at, cells, memory.scale, downs, tables, memory.errors, points, memory.off_grid)
    qx, qq = _weighted_sums(x, weights, at, cells, points, downs, None, zero, zero)
    for k in range(0, LANES * cells, LANES):
        store(points, k, where(dead, every_int(0), load(points, k)))
        store(downs, k, where(dead, every_int(0), load(downs, k)))
    fit = (load(memory.off_grid, 0) != 0) & (qx > zero) & (qq > zero)
    return where(dead, zero, where(fit, qx / qq, scale))


@inlined
def _weighted_sums(
    x: Floats,
    weights: Floats,
    at: int,
    cells: int,
    points: Words,
    downs: Words,
    factor: Lanes | None,
    qx: Lanes,
    qq: Lanes,
) -> tuple[Lanes, Lanes]:
    """Return qx, qq and the sums of weight * q * x and weight * q * q, where q are the values of the points, times the
    factor.
    """
    for k in range(cells):
        point, down = load(points, LANES * k), load(downs, LANES * k) == 1
        for i in range(8):
            j = at + LANES * (8 * k + i)
            q = _meaning(point, i, down)
            if factor is not None:
                q = q * factor
            qx, qq = qx + load(weights, j) * q * load(x, j), qq + load(weights, j) * q * q
    return qx, qq


@inlined
def _greatest_size(x: Floats, at: int, count: int) -> Lanes:
    top = absolute(load(x, at))
    for i in range(LANES, LANES * count, LANES):
        top = larger(top, absolute(load(x, at + i)))
    return top


@inlined
def _sort_group(x: Floats, weights: Floats, at: int, count: int, network: NDArray[np.int64], memory: Memory) -> None:
    """Sort x from `at` on into `values`, ascending, ties in original order. One position past the end gets an infinite
    value.
    """
    values, carried, order = memory.values, memory.weights, memory.order
    for i in range(count):
        store(values, LANES * i, load(x, at + LANES * i))
        store(carried, LANES * i, load(weights, at + LANES * i))
        store(order, LANES * i, every_int(i))
    store(values, LANES * count, every(np.float32(np.inf)))
    store(order, LANES * count, every_int(0))
    for step in range(len(network)):
        i, j = LANES * network[step, 0], LANES * network[step, 1]
        a, b, place_a, place_b = load(values, i), load(values, j), load(order, i), load(order, j)
        swap = (b < a) | ((a == b) & (place_b < place_a))
        store(values, i, where(swap, b, a))
        store(values, j, where(swap, a, b))
        store(order, i, where(swap, place_b, place_a))
        store(order, j, where(swap, place_a, place_b))
        a, b = load(carried, i), load(carried, j)
        store(carried, i, where(swap, b, a))
        store(carried, j, where(swap, a, b))


@inlined
def _units(values: Floats, weights: Floats, count: int) -> tuple[Lanes, Lanes]:
    """Return factors that bring sums of weight * x and of weights to about 1, for `_gain_above` and `_gain_near`."""
    size, total = every(np.float32(0)), every(np.float32(0))
    for i in range(0, LANES * count, LANES):
        size, total = size + absolute(load(values, i) * load(weights, i)), total + load(weights, i)
    one = every(np.float32(1))
    return where(size > VANISHING, one / size, one), where(total > VANISHING, one / total, one)


@inlined
def _gain_above(over: Lanes, under: Lanes, qx: Lanes, qq: Lanes, unit_x: Lanes, unit_w: Lanes) -> tuple[Lanes, Lanes]:
    """Return the greater of over / under and the gain qx * qx / qq, in the same form; approximately, and without
    dividing.
    """
    top, bottom = qx * unit_x * (qx * unit_x), qq * unit_w
    more = top * under > over * bottom
    return where(more, top, over), where(more, bottom, under)


@inlined
def _gain_near(over: Lanes, under: Lanes, qx: Lanes, qq: Lanes, unit_x: Lanes, unit_w: Lanes) -> Lanes:
    """Return the mask of lanes where the gain is near over / under, the greatest so far, and may be the one to choose.

    Which of several almost equal gains wins depends on rounding and on their order. llama.cpp divides whenever one is
    greater than all before, mostly in vain; dividing only for those near the maximum, in the same order, gives the same
    result.
    """
    top, bottom = qx * unit_x * (qx * unit_x), qq * unit_w
    return top * under >= over * NEARLY * bottom


@inlined
def _keep_best(qx: Lanes, qq: Lanes, down: int, i: int, j: int, best: Split) -> Split:
    """Return the best split, or the one at places i, j where it gains more, as llama.cpp decides it."""
    gain, scale, downs, lows, highs = best
    win = (qq > np.float32(0)) & (qx * qx > gain * qq)
    scale = where(win, qx / qq, scale)
    return (
        where(win, scale * qx, gain),
        scale,
        where(win, every_int(down), downs),
        where(win, every_int(i), lows),
        where(win, every_int(j), highs),
    )


@inlined
def _split_limits(values: Floats, order: Words, lows: Lanes, highs: Lanes, floats: Floats, ints: Words) -> None:
    """Store values and positions of a split for `_cell_numbers`: the first limit's, then the second one's."""
    store(ints, 0, lows)
    store(ints, LANES, highs)
    for k in range(2 * LANES):
        at = LANES * ints[k] + k % LANES
        floats[k], ints[k] = values[at], order[at]


@inlined
def _cell_numbers(
    x: Floats,
    weights: Floats,
    at: int,
    count: int,
    floats: Floats,
    ints: Words,
    mirrored: Lanes,
    scale: Lanes,
    downs: Words,
    numbers: Words,
) -> None:
    """Compute for every 8 of `count` values the number of their levels: 0 below the first limit, 1 below the second,
    then 2.

    floats, ints: `_split_limits`; values equal to a limit are below if their position is. mirrored: a mask, where
    levels are the other way round. DOUBTFUL is added where a level is not clearly the nearest one to x / scale in a
    cell that is moved down or not.
    """
    first, second, first_place, second_place = load(floats, 0), load(floats, LANES), load(ints, 0), load(ints, LANES)
    inverse = np.float32(1) / scale
    for cell in range(count // 8):
        shift = where(load(downs, LANES * cell) == 1, every(DOWN[1]), UP[1])
        number, clear = every_int(0), shift == shift
        for i in range(8):
            place = 8 * cell + i
            v = load(x, at + LANES * place)
            level = where((v < first) | ((v == first) & (first_place > place)), every_int(0), 1)
            level = where((v < second) | ((v == second) & (second_place > place)), level, 2)
            level = where(mirrored, every_int(2) - level, level)
            number += level * POWERS[i]
            away = absolute(v * inverse - shift - to_float(level - 1))
            outward = with_sign(np.float32(1), to_float(level - 1)) * (v * inverse - shift)
            nearest = (away < np.float32(0.5) - DOUBT) | ((level != 1) & (outward > np.float32(0.5) + DOUBT))
            clear = clear & (nearest | (load(weights, at + LANES * place) == np.float32(0)))
        store(numbers, LANES * cell, where(clear, number, number + DOUBTFUL))


@inlined
def _choose_points(
    x: Floats,
    weights: Floats,
    at: int,
    cells: int,
    scales: Floats,
    downs: Words,
    tables: Tables,
    errors: Floats,
    numbers: Words,
    off_grid: Words,
) -> None:
    """Convert the numbers of cells to points, index << 16 | code; return 1 for lanes where one was not on the grid.

    downs: for each cell, 1 in lanes where it is moved down.
    """
    for lane in range(LANES):
        off_grid[lane] = 0
        for cell in range(cells):
            point, count = list_of(numbers[LANES * cell + lane], tables.entries)
            if count != 0:
                off_grid[lane] = 1
                position, _ = nearest_point(
                    x,
                    weights,
                    at + 8 * LANES * cell + lane,
                    8,
                    scales[lane],
                    point,
                    count,
                    tables.codes,
                    tables.meanings[LANES * downs[LANES * cell + lane] :],
                    np.float32(0),
                    errors,
                )
                point = np.int32(tables.indexes[position]) << 16 | np.int32(tables.codes[position])
            numbers[LANES * cell + lane] = point


@inlined
def _meaning(point: Lanes, i: int, down: Any) -> Lanes:
    """Return value i of a cell at a grid point; down: a mask."""
    level = (point >> (2 * i)) & 3
    up_means = where(level == 0, every(UP[0]), where(level == 1, every(UP[1]), UP[2]))
    down_means = where(level == 0, every(DOWN[0]), where(level == 1, every(DOWN[1]), DOWN[2]))
    return where(down, down_means, up_means)


@inlined
def _best_split_iq1_s(memory: Memory) -> Split:
    """Return the best split; 1 if the cells are moved down.

    sums: of weight * x and of weights below every position, then what the part above adds to sums of weight * level * x
    and weight * level * level: moved up, moved down.
    """
    values, weights, sums = memory.values, memory.weights, memory.sums
    zero = every(np.float32(0))
    x, w = zero, zero
    for i in range(S_GROUP):
        store(sums, 6 * LANES * i, x)
        store(sums, 6 * LANES * i + LANES, w)
        weight = load(weights, LANES * i)
        x, w = x + weight * load(values, LANES * i), w + weight
    store(sums, 6 * LANES * S_GROUP, x)
    store(sums, 6 * LANES * S_GROUP + LANES, w)
    for at in range(0, 6 * LANES * (S_GROUP + 1), 6 * LANES):
        rest_x, rest_w = x - load(sums, at), w - load(sums, at + LANES)
        store(sums, at + 2 * LANES, rest_x * UP[2])
        store(sums, at + 3 * LANES, rest_x * DOWN[2])
        store(sums, at + 4 * LANES, rest_w * UP[2] * UP[2])
        store(sums, at + 5 * LANES, rest_w * DOWN[2] * DOWN[2])
    best = every(LOWEST), zero, every_int(0), every_int(0), every_int(0)
    for i in range(S_GROUP + 1):
        low = _below_first_iq1_s(sums, 6 * LANES * i)
        for j in range(i, S_GROUP + 1):
            qx_up, qq_up, qx_down, qq_down = _split_sums_iq1_s(sums, low, 6 * LANES * j)
            best = _keep_best(qx_up, qq_up, 0, i, j, best)
            best = _keep_best(qx_down, qq_down, 1, i, j, best)
    return best


@inlined
def _below_first_iq1_s(sums: Floats, at: int) -> Any:
    """Return what does not depend on the second limit: sums below the first one, alone and times levels."""
    x, w = load(sums, at), load(sums, at + LANES)
    return x, w, x * UP[0], x * DOWN[0], w * UP[0] * UP[0], w * DOWN[0] * DOWN[0]


@inlined
def _split_sums_iq1_s(sums: Floats, low: Any, at: int) -> Any:
    """Return the sums of weight * level * x and weight * level * level, for cells moved up and for cells moved down."""
    middle = (load(sums, at) - low[0]) * UP[1]
    middle_square = (load(sums, at + LANES) - low[1]) * UP[1] * UP[1]
    return (
        low[2] + middle + load(sums, at + 2 * LANES),
        low[4] + middle_square + load(sums, at + 4 * LANES),
        low[3] - middle + load(sums, at + 3 * LANES),
        low[5] + middle_square + load(sums, at + 5 * LANES),
    )


@inlined
def _best_split_iq1_m(memory: Memory) -> Split:
    """Return the best split, and which way the cells are moved.

    sums: of either cell's weight * x below every position, and what its weights up to the second limit add to the sum
    of squares, moved up and down. As levels are 1 apart, the sum of weight * x * level is that of all values in the
    highest level, less the sums below the two limits.
    """
    values, weights, order, sums = memory.values, memory.weights, memory.order, memory.sums
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
    unit_x, unit_w = _units(values, weights, M_GROUP)
    over, under = -every(np.float32(1)), every(np.float32(1))
    for i in range(M_GROUP + 1):
        low = _below_first_iq1_m(sums, squares, i)
        for j in range(i, M_GROUP + 1):
            qx, qq = _split_sums_iq1_m(sums, totals, low, j)
            over, under = _gain_above(over, under, qx[0], qq[0], unit_x, unit_w)
            over, under = _gain_above(over, under, qx[1], qq[1], unit_x, unit_w)
            over, under = _gain_above(over, under, qx[2], qq[2], unit_x, unit_w)
            over, under = _gain_above(over, under, qx[3], qq[3], unit_x, unit_w)
    best = every(LOWEST), zero, every_int(0), every_int(0), every_int(0)
    for i in range(M_GROUP + 1):
        low = _below_first_iq1_m(sums, squares, i)
        for j in range(i, M_GROUP + 1):
            qx, qq = _split_sums_iq1_m(sums, totals, low, j)
            near = _gain_near(over, under, qx[0], qq[0], unit_x, unit_w)
            near |= _gain_near(over, under, qx[1], qq[1], unit_x, unit_w)
            near |= _gain_near(over, under, qx[2], qq[2], unit_x, unit_w)
            near |= _gain_near(over, under, qx[3], qq[3], unit_x, unit_w)
            if any_lane(near):
                best = _keep_best(qx[0], qq[0], 0, i, j, best)
                best = _keep_best(qx[1], qq[1], 1, i, j, best)
                best = _keep_best(qx[2], qq[2], 2, i, j, best)
                best = _keep_best(qx[3], qq[3], 3, i, j, best)
    return best


@inlined
def _below_first_iq1_m(sums: Floats, squares: Any, i: int) -> Any:
    """Return what does not depend on the second limit: sums of both cells, and parts of the sums of squares."""
    at = 6 * LANES * i
    w_a, w_b = load(sums, at + LANES), load(sums, at + 4 * LANES)
    return (
        load(sums, at),
        load(sums, at + 3 * LANES),
        squares[0] + w_a * UP_FIRST,
        squares[1] + w_b * UP_FIRST,
        squares[2] + w_a * DOWN_FIRST,
        squares[3] + w_b * DOWN_FIRST,
    )


@inlined
def _split_sums_iq1_m(sums: Floats, totals: Any, low: Any, j: int) -> Any:
    """Return the sums of weight * level * x and weight * level * level for the four ways to move the cells."""
    at = 6 * LANES * j
    below_a, below_b = low[0] + load(sums, at), low[1] + load(sums, at + 3 * LANES)
    up_a, up_b, down_a, down_b = totals[0] - below_a, totals[1] - below_b, totals[2] - below_a, totals[3] - below_b
    qx = up_a + up_b, up_a + down_b, down_a + up_b, down_a + down_b
    up_a, up_b = low[2] + load(sums, at + LANES) * UP_SECOND, low[3] + load(sums, at + 4 * LANES) * UP_SECOND
    down_a, down_b = low[4] + load(sums, at + 2 * LANES), low[5] + load(sums, at + 5 * LANES)
    return qx, (up_a + up_b, up_a + down_b, down_a + up_b, down_a + down_b)


def _search(medium: bool, group: int, zero_below: float, fudge: float) -> Search:
    """Return the search of IQ1_M or IQ1_S. zero_below: groups with no larger value are zero. fudge: factor of d, as in
    llama.cpp.
    """
    groups, cells, min_peak, factor = SUPER // group, group // 8, np.float32(zero_below), np.float32(fudge)

    @kernel
    def search(
        x: Floats,
        importance: Floats,
        network: NDArray[np.int64],
        tables: Tables,
        blocks: Blocks,
        memory: Memory,
        result: Result,
    ) -> None:
        zero = every(np.float32(0))
        for first in range(0, x.size // SUPER, LANES):
            load_weighted(x, importance, first, np.float32(2), np.float32(0), blocks)
            top = zero
            for g in range(groups):
                points, downs = blocks.codes[LANES * cells * g :], blocks.words[LANES * cells * g :]
                _sort_group(blocks.x, blocks.weights, LANES * group * g, group, network, memory)
                if medium:
                    best = _best_split_iq1_m(memory)
                    store(downs, 0, best[2] >> 1)
                    store(downs, LANES, best[2] & 1)
                else:
                    best = _best_split_iq1_s(memory)
                    for k in range(0, cells * LANES, LANES):
                        store(downs, k, best[2])
                scale = _fit_group(LANES * group * g, group, min_peak, best, tables, blocks, memory, points, downs)
                store(blocks.scales, LANES * g, scale)
                top = larger(top, scale)
            d = number_scales(blocks.scales, top, 7, groups, blocks.scale_codes)
            for k in range(0, LANES * CELLS, LANES):  # nothing is moved down if all scales are zero
                store(blocks.words, k, where(top > zero, load(blocks.words, k), 0))
            if medium:
                qx, qq = zero, zero
                for g in range(groups):
                    points, downs = blocks.codes[LANES * cells * g :], blocks.words[LANES * cells * g :]
                    factors = to_float(load(blocks.scale_codes, LANES * g) * 2 + 1)
                    qx, qq = _weighted_sums(
                        blocks.x, blocks.weights, LANES * group * g, cells, points, downs, factors, qx, qq
                    )
                d = where(top > zero, where(qq > zero, qx / qq, d), zero)
            put_result(d * factor, first, 8, groups, blocks, result)

    meanings = np.array([(*UP, 0) * (LANES // 4), (*DOWN, 0) * (LANES // 4)], np.float32).reshape(-1)
    return Search(search, "IQ1_S", 8, group, 3, meanings, sorting_network(group), partial(_memory, group))


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


SEARCHES = {"IQ1_S": _search(False, S_GROUP, 1e-12, 1.125), "IQ1_M": _search(True, M_GROUP, 1e-7, 1.1125)}
KERNELS, encode, decode = grid_codec(SEARCHES, {"IQ1_S": _decode_iq1_s, "IQ1_M": _decode_iq1_m}, _fields)
