"""What IQ1_S and IQ1_M share: three levels moved up or down by an eighth, and the best split of a group into them.

With values in ascending order, the best levels for any scale are a split of the order in three; all splits are tried.
"""

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .blocks import Floats, Words
from .blocks import Memory as Blocks
from .grid_search import DOUBT, DOUBTFUL, LONGEST_LIST, POWERS, Search, Tables, list_of, nearest_point, number_scales
from .jit import inlined
from .lane_memory import load, rooms, store
from .lanes import LANES, Lanes, absolute, every, every_int, larger, to_float, where, with_sign

CELLS = 32  # of 8 values in a super-block
# What the levels 0, 1, 2 mean in a cell that is moved up, and in one moved down.
UP = (np.float32(-0.875), np.float32(0.125), np.float32(1.125))
DOWN = (np.float32(-1.125), np.float32(-0.125), np.float32(0.875))
LOWEST = np.float32(np.finfo(np.float32).min)
NEARLY = np.float32(1 - 1e-4)
VANISHING = np.float32(1e-30)


def split_search(kernel: Any, group: int, sums: Callable[[], Any]) -> Search:
    """For groups of `group` values. sums: makes more of the kernel's memory."""
    meanings = np.array([(*UP, 0) * (LANES // 4), (*DOWN, 0) * (LANES // 4)], np.float32).reshape(-1)
    memory = partial(_memory, group, sums)
    return Search(kernel, "IQ1_S", 8, group, 3, meanings, sorting_network(group), memory)


def sorting_network(count: int) -> NDArray[np.int64]:
    """Batcher's odd-even merge sort: int64 (steps, 2), places to be compared and put in order, one after the other."""
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

    values: Floats  # in order
    weights: Floats  # theirs
    limits: Floats  # of a split
    scale: Floats
    errors: Floats  # of neighbours
    order: Words  # where the values were
    places: Words  # where limits are
    off_grid: Words
    sums: Any


def _memory(group: int, sums: Callable[[], Any]) -> Memory:
    floats, words = rooms(group + 1, group + 1, 2, 1, LONGEST_LIST // LANES), rooms(group + 1, 2, 1)
    return Memory._make([*floats, *(array.view(np.int32) for array in words), sums()])


@inlined
def fit_group(
    at: int, count: int, zero_below: np.float32, gain: Lanes, scale: Lanes, lows: Lanes, highs: Lanes, tables: Tables,
    blocks: Blocks, memory: Memory, points: Words, downs: Words,
) -> Lanes:  # fmt: skip
    """The scale of a group of `count` values, of which a split is known, and its points. downs: as the split has it."""
    x, weights, zero, cells = blocks.x, blocks.weights, every(np.float32(0)), count // 8
    split_limits(memory.values, memory.order, lows, highs, memory.limits, memory.places)
    dead = (greatest_size(x, at, count) < zero_below) | (gain == LOWEST)
    mirrored = scale < zero
    scale = absolute(scale)
    for k in range(0, LANES * cells, LANES):
        store(downs, k, where(mirrored, every_int(1) - load(downs, k), load(downs, k)))
    store(memory.scale, 0, scale)
    cell_numbers(x, weights, at, count, memory.limits, memory.places, mirrored, scale, downs, points)
    choose_points(x, weights, at, cells, memory.scale, downs, tables, memory.errors, points, memory.off_grid)
    qx, qq = weighted_sums(x, weights, at, cells, points, downs, None, zero, zero)
    for k in range(0, LANES * cells, LANES):
        store(points, k, where(dead, every_int(0), load(points, k)))
        store(downs, k, where(dead, every_int(0), load(downs, k)))
    fit = (load(memory.off_grid, 0) != 0) & (qx > zero) & (qq > zero)
    return where(dead, zero, where(fit, qx / qq, scale))


@inlined
def weighted_sums(
    x: Floats, weights: Floats, at: int, cells: int, points: Words, downs: Words, factor: Lanes | None, qx: Lanes,
    qq: Lanes,
) -> tuple[Lanes, Lanes]:  # fmt: skip
    """qx, qq and the sums of weight * q * x and weight * q * q, q what the points mean, times the factor."""
    for k in range(cells):
        point, down = load(points, LANES * k), load(downs, LANES * k) == 1
        for i in range(8):
            j = at + LANES * (8 * k + i)
            q = meaning(point, i, down)
            if factor is not None:
                q = q * factor
            qx, qq = qx + load(weights, j) * q * load(x, j), qq + load(weights, j) * q * q
    return qx, qq


@inlined
def number_groups(top: Lanes, groups: int, blocks: Blocks) -> Lanes:
    """`number_scales`; nothing is moved down where all scales are zero."""
    for k in range(0, LANES * CELLS, LANES):
        store(blocks.words, k, where(top > np.float32(0), load(blocks.words, k), 0))
    return number_scales(top, 7, groups, blocks)


@inlined
def greatest_size(x: Floats, at: int, count: int) -> Lanes:
    top = absolute(load(x, at))
    for i in range(LANES, LANES * count, LANES):
        top = larger(top, absolute(load(x, at + i)))
    return top


@inlined
def sort_group(
    x: Floats, weights: Floats, at: int, count: int, network: NDArray[np.int64],
    values: Floats, carried: Floats, order: Words,
) -> None:  # fmt: skip
    """values: x from at on in ascending order, equal ones in theirs; carried: their weights; order: where they were.

    One place past the end has an infinite value.
    """
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
def units(values: Floats, weights: Floats, count: int) -> tuple[Lanes, Lanes]:
    """What brings sums of weight * x and of weights to about 1, for `gain_above` and `gain_near`."""
    size, total = every(np.float32(0)), every(np.float32(0))
    for i in range(0, LANES * count, LANES):
        size, total = size + absolute(load(values, i) * load(weights, i)), total + load(weights, i)
    one = every(np.float32(1))
    return where(size > VANISHING, one / size, one), where(total > VANISHING, one / total, one)


@inlined
def gain_above(over: Lanes, under: Lanes, qx: Lanes, qq: Lanes, unit_x: Lanes, unit_w: Lanes) -> tuple[Lanes, Lanes]:
    """The greater of over / under and the gain qx * qx / qq, in the same form; approximately, and without dividing."""
    top, bottom = qx * unit_x * (qx * unit_x), qq * unit_w
    more = top * under > over * bottom
    return where(more, top, over), where(more, bottom, under)


@inlined
def gain_near(over: Lanes, under: Lanes, qx: Lanes, qq: Lanes, unit_x: Lanes, unit_w: Lanes) -> Lanes:
    """Mask of lanes where the gain comes near to over / under, the greatest, so that it may be the one to be chosen.

    Which of some almost equal gains wins depends on rounding and on their order. llama.cpp divides whenever one is
    greater than all before, mostly in vain; dividing for those near the top, in the same order, ends with the same one.
    """
    top, bottom = qx * unit_x * (qx * unit_x), qq * unit_w
    return top * under >= over * NEARLY * bottom


@inlined
def keep_best(
    qx: Lanes, qq: Lanes, kind: int, i: int, j: int, gain: Lanes, scale: Lanes, kinds: Lanes, lows: Lanes, highs: Lanes
) -> tuple[Lanes, Lanes, Lanes, Lanes, Lanes]:
    """gain … highs, with the split at places i, j in their stead where it gains more, as llama.cpp decides it."""
    win = (qq > np.float32(0)) & (qx * qx > gain * qq)
    scale = where(win, qx / qq, scale)
    return (
        where(win, scale * qx, gain), scale, where(win, every_int(kind), kinds), where(win, every_int(i), lows),
        where(win, every_int(j), highs),
    )  # fmt: skip


@inlined
def split_limits(values: Floats, order: Words, lows: Lanes, highs: Lanes, floats: Floats, ints: Words) -> None:
    """Values and places at which a split is, for `cell_numbers`: the first limit's, then the second one's."""
    store(ints, 0, lows)
    store(ints, LANES, highs)
    for k in range(2 * LANES):
        at = LANES * ints[k] + k % LANES
        floats[k], ints[k] = values[at], order[at]


@inlined
def cell_numbers(
    x: Floats, weights: Floats, at: int, count: int, floats: Floats, ints: Words, mirrored: Lanes, scale: Lanes,
    downs: Words, numbers: Words,
) -> None:  # fmt: skip
    """For every 8 of `count` values the number of their levels: 0 below the first limit, 1 below the second, then 2.

    floats, ints: `split_limits`; values equal to a limit are below if their place is. mirrored: a mask, where levels
    are the other way round. DOUBTFUL is added where a level is not clearly the nearest one to x / scale in a cell that
    is moved down or not.
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
def choose_points(
    x: Floats, weights: Floats, at: int, cells: int, scales: Floats, downs: Words, tables: Tables, errors: Floats,
    numbers: Words, off_grid: Words,
) -> None:  # fmt: skip
    """Turn the numbers of cells to points, index << 16 | code; off_grid: 1 for lanes where one was not on the grid.

    downs: for each cell, 1 in lanes where it is moved down.
    """
    for lane in range(LANES):
        off_grid[lane] = 0
        for cell in range(cells):
            point, count = list_of(numbers[LANES * cell + lane], tables.entries)
            if count != 0:
                off_grid[lane] = 1
                position, _ = nearest_point(
                    x, weights, at + 8 * LANES * cell + lane, 8, scales[lane], point, count, tables.codes,
                    tables.meanings[LANES * downs[LANES * cell + lane] :], np.float32(0), errors)
                point = np.int32(tables.indexes[position]) << 16 | np.int32(tables.codes[position])
            numbers[LANES * cell + lane] = point


@inlined
def meaning(point: Lanes, i: int, down: Any) -> Lanes:
    """What value i of a cell is at a grid point; down: a mask."""
    level = (point >> (2 * i)) & 3
    up_means = where(level == 0, every(UP[0]), where(level == 1, every(UP[1]), UP[2]))
    down_means = where(level == 0, every(DOWN[0]), where(level == 1, every(DOWN[1]), DOWN[2]))
    return where(down, down_means, up_means)
