"""The search of the IQ2 and IQ3 formats: a scale for a group of values, and a grid point for each cell of 8 or 4.

A scale and a cell's values round to a combination of levels. If no grid point is that combination, the encoder takes
the point of the smallest weighted error from the combination's list of neighbours (`kernels.neighbours`). Scales
around the one that maps the greatest value to the greatest level are tried; the one with the smallest weighted error
wins.

Lanes are super-blocks, each with its own group; the lists are searched with sixteen neighbours in the lanes.

Most searches of lists are avoided, exactly. Error as a function of the scale s is s * (s * A - 2 * B) + C, with A and B
a point's own and C the same for all: of two points, one is better up to some scale, the other one from there on. So
where scales round to the same combination, and a point is the best at both the smallest and the greatest of them, it
is the best in between. That holds in float arithmetic if it wins at both ends by more than arithmetic can be wrong.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..format import Format
from .blocks import (
    Bytes,
    Floats,
    Kernels,
    Words,
    columns,
    flat,
    load_blocks,
    load_importance,
    sum_of_squares,
    value_rows,
    weigh,
    working_memory,
)
from .blocks import Memory as Blocks
from .grids import grid_values
from .half import to_half
from .jit import inlined, kernel
from .lane_memory import load, pick_of_eight, pick_of_four, rooms, store
from .lanes import (
    LANES,
    Lanes,
    absolute,
    all_lanes,
    every,
    every_int,
    lane_numbers,
    larger,
    lowest_bit,
    mask_bits,
    round_even,
    smaller,
    smallest_lane,
    smallest_of_half,
    square_root,
    to_float,
    where,
)
from .neighbours import neighbours
from .rounding import nearest_int
from .scales import positive_scale

LONGEST_LIST = 304
# A sum's error is below 28 * 2**-24 of the terms' bound, two sums are compared, and their difference may be smaller by
# the ratio of the least to the greatest scale, at least 2/3, between the scales where it was found.
TOLERANCE = np.float32(1e-5)
MIN_NORMAL = np.float32(1e-30)  # below this, relative bounds do not hold
DOUBT, DOUBTFUL = np.float32(3e-5), 1 << 16  # how near to the middle of two levels rounding may choose the farther one
POWERS = (1, 3, 9, 27, 81, 243, 729, 2187)

SUPER = 256  # values of a super-block
HALF, FRESH = LANES // 2, 4
REFIT_ALWAYS, REFIT_OFF_GRID_CELLS, REFIT_IF_OFF_GRID = 0, 1, 2
MAX_LEVEL = np.float32(4)  # of the even levels that the first estimate of a scale uses


class Tables(NamedTuple):
    """The `Neighbours` of a grid, and the values of its levels, repeated as `nearest_point` picks from them."""

    entries: Words
    codes: NDArray[np.uint16]
    indexes: NDArray[np.uint16]
    meanings: Floats


def odd_levels(dims: int) -> Floats:
    """Return 1, 3, 5 …, the values of levels in cells of `dims` values."""
    few = 4 if dims == 8 else 8
    return (2 * (np.arange(LANES) % few) + 1).astype(np.float32)


class Memory(NamedTuple):
    """Arrays of the search for a group of values."""

    x: Floats  # sizes of the group's values
    scales: Floats
    roots: Floats  # square roots of the weights
    products: Floats  # weights times values
    sum_roots: Floats  # of each cell
    sum_squares: Floats  # roots times squared values
    errors: Floats  # of neighbours
    final: Floats  # the scale that won
    levels: Words  # of each value
    numbers: Words  # of combinations, of each cell at each scale
    chosen: Words  # points for them
    changes: Words  # a bit for each scale at which a cell's point may change
    winner: Words  # which scale won
    again: Words  # whether points were chosen again
    intervals: Words  # the queue of intervals of scales, see `_push`


def _memory(dims: int, group: int, tries: int) -> Memory:
    """Allocate the memory for groups of `group` values in cells of `dims`, and `tries` scales."""
    cells = group // dims
    floats = rooms(group, tries, group, group, cells, cells, LONGEST_LIST // LANES, 1)
    words = (array.view(np.int32) for array in rooms(group, cells * tries, cells * tries, 1, 1, 1))
    return Memory._make([*floats, *words, np.empty((3 * LANES * tries + 3, 4), np.int32)])


class Result(NamedTuple):
    """Results of the search for super-blocks, in C order (blocks, …): d (float16 bits), scale numbers, points, sign
    bits.

    alive: whether a group has values other than zero; if not, all its results are zero.
    """

    d: NDArray[np.uint16]
    levels: Bytes
    alive: Bytes
    indexes: NDArray[np.uint16]
    signs: Bytes


class Search(NamedTuple):
    """How a format's encoder searches: its kernel, the grid with its lists, the values of levels, and working
    memory.
    """

    kernel: Any
    grid: str
    dims: int  # values of a cell
    group: int  # values of a group
    distances: int  # of neighbours
    meanings: Floats
    steps: NDArray[Any]  # scales that are tried, or a sorting network
    memory: Callable[[], Any]

    def run(self, rows: Floats, importance: Floats | None) -> Result:
        """Run the search for rows."""
        count, groups = rows.size // SUPER, SUPER // self.group
        result = Result(
            np.empty(count, np.uint16),
            np.empty((count, groups), np.uint8),
            np.empty((count, groups), np.uint8),
            np.empty((count, SUPER // self.dims), np.uint16),
            np.empty((count, SUPER // 8), np.uint8),
        )
        near = neighbours(self.grid, self.distances)
        tables = Tables(near.entries.reshape(-1), near.codes, near.indexes, self.meanings)
        memory = working_memory(SUPER), self.memory()
        self.kernel(flat(rows), columns(importance), self.steps, tables, *memory, result)
        return result


def grid_codec(
    searches: dict[str, Search], decoders: dict[str, Any], fields: Callable[[str, Result], dict[str, NDArray[Any]]]
) -> tuple[dict[str, Kernels], Callable[..., Bytes], Callable[[Format, Bytes], Floats]]:
    """Return a module's kernels, `encode` and `decode`. fields: a block's fields from the search results."""

    def encode(form: Format, rows: Floats, importance: Floats | None) -> Bytes:
        result = searches[form.name].run(rows, importance)
        blocks = np.empty(len(result.d), form.block)
        for name, values in fields(form.name, result).items():
            blocks[name] = values
        return blocks.view(np.uint8).reshape(len(rows), -1)

    def decode(form: Format, raw: Bytes) -> Floats:
        values = value_rows(form, raw)
        decoders[form.name](flat(raw), grid_values(searches[form.name].grid), values.reshape(-1))
        return values

    return {name: Kernels(s.kernel, s.kernel, decoders[name]) for name, s in searches.items()}, encode, decode


def point_search(
    grid: str,
    dims: int,
    group: int,
    even: bool,
    start_even: bool,
    refit: int,
    zero_below: float,
    mean_factor: float,
    plain_factor: float,
    fudge: float,
    distances: int,
    highest: int,
    tries: int,
    step: float,
) -> Search:
    """Return a search for the best points and scales of super-blocks, for groups of `group` values in cells of `dims`.

    even: of every eight values an even number is negative. start_even: begin with the scale of even levels. refit: what
    is done again with the best scale. zero_below: groups with no larger value are zero. mean_factor, plain_factor: see
    `load_weighted`. fudge: llama.cpp's factor of the stored scale. The greatest value maps to highest ± tries * step.
    """
    groups, cells = SUPER // group, group // dims
    mean, plain, min_peak, factor = (np.float32(each) for each in (mean_factor, plain_factor, zero_below, fudge))

    @kernel
    def search(
        x: Floats, importance: Floats, tried: Floats, tables: Tables, blocks: Blocks, memory: Memory, result: Result
    ) -> None:
        count, zero = x.size // SUPER, every(np.float32(0))
        for first in range(0, count, LANES):
            load_weighted(x, importance, first, mean, plain, blocks)
            top = zero
            for g in range(groups):
                at = LANES * group * g
                points, signs = blocks.codes[LANES * cells * g :], blocks.words[LANES * (group // 8) * g :]
                fold_signs(blocks.x, at, group, blocks.weights, even, memory.x, signs)
                peak = greatest(memory.x, group)
                dead = peak < min_peak
                if start_even:
                    start = positive_scale(memory.x, blocks.weights[at:], group, MAX_LEVEL, memory.roots, memory.levels)
                    peak = start * np.float32(3)
                    dead = dead | (peak <= zero)
                else:
                    start = peak / tried[tried.size // 2]
                scale = search_group(blocks.weights, at, cells, dims, peak, start, tried, refit, tables, memory, points)
                _clear_dead(dead, where(scale < zero, every_int(255), 0), cells, group, points, signs)
                store(memory.winner, 0, where(dead, every_int(0), 1))
                for lane in range(min(LANES, count - first)):
                    result.alive[first + lane, g] = memory.winner[lane]
                scale = where(dead, zero, absolute(scale))
                store(blocks.scales, LANES * g, scale)
                top = larger(top, scale)
            d = number_scales(blocks.scales, top, 15, groups, blocks.scale_codes)
            put_result(d * factor, first, dims, groups, blocks, result)

    away = np.arange(-tries, tries + 1, dtype=np.float32) * np.float32(step)
    memory = partial(_memory, dims, group, away.size)
    return Search(search, grid, dims, group, distances, odd_levels(dims), np.float32(highest) + away, memory)


def packed_nibbles(levels: Bytes) -> Bytes:
    """Return two to a byte, the first in its lower half."""
    return np.asarray(levels[:, ::2] | levels[:, 1::2] << 4, np.uint8)


def packed_with_scale(signs: Bytes, levels: Bytes) -> NDArray[np.uint32]:
    """Pack for every 32 values 4 times 7 bits of signs, then 4 bits of scale."""
    bits = (signs & 127).astype(np.uint32)
    of_four = bits[:, ::4] | bits[:, 1::4] << 7 | bits[:, 2::4] << 14 | bits[:, 3::4] << 21
    return np.asarray(of_four | levels.astype(np.uint32) << 28, np.uint32)


@inlined
def fold_signs(x: Floats, at: int, count: int, weights: Floats, even: bool, sizes: Floats, signs: Words) -> None:
    """Compute sizes = |x| and a word of sign bits for every eight of `count` values a lane, from `at` on.

    even: the number of negative signs is made even by flipping the value of smallest weight * x * x, whose size becomes
    negative; the eighth bit is then left out.
    """
    for i in range(0, LANES * count, 8 * LANES):
        bits, min_at = every_int(0), every_int(0)
        odd = every_int(0)
        min_cost = load(weights, at + i) * load(x, at + i) * load(x, at + i)
        for j in range(8):
            v = load(x, at + i + LANES * j)
            negative = v < np.float32(0)
            bits |= where(negative, every_int(1 << j), 0)
            odd ^= where(negative, every_int(1), 0)
            store(sizes, i + LANES * j, absolute(v))
            if even:
                cost = load(weights, at + i + LANES * j) * v * v
                min_at = where(cost < min_cost, every_int(j), min_at)
                min_cost = smaller(cost, min_cost)
        if even:
            min_at = where(odd == 1, min_at, -1)
            for j in range(8):
                turn = min_at == j
                size = load(sizes, i + LANES * j)
                store(sizes, i + LANES * j, where(turn, -size, size))
                bits ^= where(turn, every_int(1 << j), 0)
            bits &= 127
        store(signs, i // 8, bits)


@inlined
def _clear_dead(dead: Lanes, turn: Lanes, cells: int, group: int, points: Words, signs: Words) -> None:
    """Write zeros for the points and signs of groups that are `dead`; in others turn the signs by the bits `turn`."""
    for k in range(0, LANES * cells, LANES):
        store(points, k, where(dead, every_int(0), load(points, k)))
    for k in range(0, LANES * (group // 8), LANES):
        store(signs, k, where(dead, every_int(0), load(signs, k) ^ turn))


@inlined
def greatest(sizes: Floats, count: int) -> Lanes:
    top = load(sizes, 0)
    for i in range(LANES, LANES * count, LANES):
        top = larger(top, load(sizes, i))
    return top


@inlined
def _combination(x: Floats, at: int, dims: int, inverse: Lanes) -> Lanes:
    """Return the number of the combination of levels nearest to x * inverse, plus DOUBTFUL where it is barely the
    nearest.
    """
    number = every_int(0)
    if dims == 8:
        distance = every(np.float32(1))
        for i in range(8):
            v = inverse * load(x, at + LANES * i) - np.float32(1)
            number += where(v > np.float32(1), every_int(POWERS[i]), 0)
            number += where(v >= np.float32(3), every_int(POWERS[i]), 0)
            distance = smaller(absolute(absolute(v - np.float32(2)) - np.float32(1)), distance)
        return where(distance < DOUBT, number + DOUBTFUL, number)
    off = every(np.float32(0))
    for i in range(4):
        v = np.float32(0.5) * (inverse * load(x, at + LANES * i) - np.float32(1))
        number |= larger(every_int(0), smaller(every_int(7), nearest_int(v))) << (3 * i)
        off = larger(absolute(v - round_even(v)), off)
    return where(off > np.float32(0.5) - DOUBT, number + DOUBTFUL, number)


@inlined
def _wrapped_combination(x: Floats, at: int, dims: int, inverse: Lanes) -> Lanes:
    """Return `_combination` where x * inverse may be so great that rounding wraps, as in llama.cpp: no nearest levels
    then.
    """
    number = every_int(DOUBTFUL)
    for i in range(dims):
        level = nearest_int(np.float32(0.5) * (inverse * load(x, at + LANES * i) - np.float32(1)))
        level = larger(every_int(0), smaller(every_int(2 if dims == 8 else 7), level))
        number += level * (POWERS[i] if dims == 8 else 1 << (3 * i))
    return number


@inlined
def _combinations(
    x: Floats, cells: int, dims: int, inverse: Lanes, span: Lanes, numbers: Words, stride: int, start: int
) -> None:
    """Write the number of each cell's combination to numbers[stride * cell + start]; span: bound of |x|."""
    if all_lanes(span * inverse < np.float32(1 << 22)):
        for cell in range(cells):
            store(numbers, LANES * (stride * cell + start), _combination(x, LANES * dims * cell, dims, inverse))
    else:
        for cell in range(cells):
            store(numbers, LANES * (stride * cell + start), _wrapped_combination(x, LANES * dims * cell, dims, inverse))


@inlined
def list_of(number: int, entries: Words) -> tuple[int, int]:
    """Return start and length of the list to search; for a grid point index << 16 | code and 0."""
    entry = 4 * (number & (DOUBTFUL - 1))
    if number < DOUBTFUL and entries[entry + 1] != 0:
        entry += 2
    return entries[entry], entries[entry + 1]


@inlined
def _term(values: Lanes, x: Floats, root: Floats, at: int) -> Lanes:
    difference = values - x[at]
    return difference * root[at] * difference


@inlined
def _terms(x: Floats, root: Floats, at: int, dims: int, scale: np.float32, meanings: Floats) -> Any:
    """Compute for each value of a cell its error at each level, repeated as `pick_of_four` and `pick_of_eight` need
    it.
    """
    values = load(meanings, 0) * scale
    t0, t1 = _term(values, x, root, at), _term(values, x, root, at + LANES)
    t2, t3 = _term(values, x, root, at + 2 * LANES), _term(values, x, root, at + 3 * LANES)
    if dims != 8:
        return t0, t1, t2, t3, t0, t1, t2, t3
    t4, t5 = _term(values, x, root, at + 4 * LANES), _term(values, x, root, at + 5 * LANES)
    t6, t7 = _term(values, x, root, at + 6 * LANES), _term(values, x, root, at + 7 * LANES)
    return t0, t1, t2, t3, t4, t5, t6, t7


@inlined
def _errors(terms: Any, code: Lanes, dims: int) -> Lanes:
    """Return the error of each lane's point, summed from the first value to the last."""
    t0, t1, t2, t3, t4, t5, t6, t7 = terms
    if dims == 8:
        error = pick_of_four(t0, code) + pick_of_four(t1, code >> 2)
        error = error + pick_of_four(t2, code >> 4) + pick_of_four(t3, code >> 6)
        error = error + pick_of_four(t4, code >> 8) + pick_of_four(t5, code >> 10)
        return error + pick_of_four(t6, code >> 12) + pick_of_four(t7, code >> 14)
    error = pick_of_eight(t0, code) + pick_of_eight(t1, code >> 3)
    return error + pick_of_eight(t2, code >> 6) + pick_of_eight(t3, code >> 9)


@inlined
def _first_minimum(error: Lanes, margin: np.float32) -> tuple[int, bool]:
    """Return the first lane of the smallest error, and whether all others are greater by more than `margin`."""
    lowest = smallest_lane(error)
    near, exact = mask_bits(error <= lowest + margin), mask_bits(error == lowest)
    return lowest_bit(exact) & (LANES - 1), near & (near - 1) == 0


@inlined
def nearest_point(
    x: Floats,
    root: Floats,
    at: int,
    dims: int,
    scale: np.float32,
    first: int,
    count: int,
    codes: NDArray[np.uint16],
    meanings: Floats,
    margin: np.float32,
    errors: Floats,
) -> tuple[int, bool]:
    """Return where in `codes` the point of the smallest error is, the first if several, and whether it wins by more
    than `margin`.
    """
    terms = _terms(x, root, at, dims, scale, meanings)
    infinite = every(np.float32(np.inf))
    if count <= LANES:
        error = where(lane_numbers() < count, _errors(terms, load(codes, first), dims), infinite)
        lane, unique = _first_minimum(error, margin)
        return first + lane, unique
    minima = infinite
    for k in range(0, count, LANES):
        error = where(lane_numbers() < count - k, _errors(terms, load(codes, first + k), dims), infinite)
        store(errors, k, error)
        minima = smaller(error, minima)
    lowest = smallest_lane(minima)
    nearest, near = 0, 0
    for k in range(count - 1 & -LANES, -1, -LANES):
        error = load(errors, k)
        bits, exact = mask_bits(error <= lowest + margin), mask_bits(error == lowest)
        near += (bits != 0) + (bits & (bits - 1) != 0)
        nearest = k + lowest_bit(exact) if exact != 0 else nearest
    return first + nearest, near == 1


@inlined
def _sums(wx: Floats, weights: Floats, at: int, cells: int, dims: int, points: Words, stride: int, start: int) -> Any:
    """Return the sums of weight * x * q and weight * q * q over a group, where q are the values of the points."""
    sum_qx, sum_qq = every(np.float32(0)), every(np.float32(0))
    bits = 2 if dims == 8 else 3
    for cell in range(cells):
        point = load(points, LANES * (stride * cell + start))
        for i in range(dims):
            j = LANES * (dims * cell + i)
            q = to_float(((point >> (bits * i)) & ((1 << bits) - 1)) * 2 + 1)
            sum_qx = sum_qx + load(wx, j) * q
            sum_qq = sum_qq + load(weights, at + j) * q * q
    return sum_qx, sum_qq


@inlined
def _prepare(weights: Floats, at: int, cells: int, dims: int, memory: Memory) -> None:
    x = memory.x
    for cell in range(cells):
        total, squares = every(np.float32(0)), every(np.float32(0))
        for i in range(LANES * dims * cell, LANES * dims * (cell + 1), LANES):
            v, w = load(x, i), load(weights, at + i)
            root = square_root(w)
            store(memory.roots, i, root)
            store(memory.products, i, w * v)
            total, squares = total + root, squares + root * v * v
        store(memory.sum_roots, LANES * cell, total)
        store(memory.sum_squares, LANES * cell, squares)


@inlined
def _nearest_points(
    x: Floats,
    root: Floats,
    at: int,
    dims: int,
    scale_a: np.float32,
    scale_b: np.float32,
    two: bool,
    roots: np.float32,
    squares: np.float32,
    first: int,
    count: int,
    tables: Tables,
    errors: Floats,
) -> tuple[int, int, bool, bool]:
    """Return points (index << 16 | code) of the smallest error at two scales, and if they win by more than arithmetic
    can be wrong.

    roots, squares: what the bound of the error is made of. If not `two`, the second result is as the first.
    """
    margin_a = TOLERANCE * (roots * scale_a * scale_a + squares)
    margin_b = TOLERANCE * (roots * scale_b * scale_b + squares)
    if dims == 4 and count <= HALF:
        upper = lane_numbers() >= HALF
        values = load(tables.meanings, 0) * where(upper, every(scale_b), scale_a)
        t0, t1 = _term(values, x, root, at), _term(values, x, root, at + LANES)
        t2, t3 = _term(values, x, root, at + 2 * LANES), _term(values, x, root, at + 3 * LANES)
        error = _errors((t0, t1, t2, t3, t0, t1, t2, t3), load(tables.codes, first), dims)
        error = where((lane_numbers() & (HALF - 1)) < count, error, every(np.float32(np.inf)))
        lowest = smallest_of_half(error)
        near = mask_bits(error <= lowest + where(upper, every(margin_b), margin_a))
        exact = mask_bits(error == lowest)
        near_a, near_b = near & 0xFF, near >> HALF
        position_a = first + (lowest_bit(np.int32(exact & 0xFF)) & (HALF - 1))
        position_b = first + (lowest_bit(np.int32(exact >> HALF)) & (HALF - 1))
        unique_a, unique_b = near_a & (near_a - 1) == 0, near_b & (near_b - 1) == 0
    else:
        position_a, unique_a = first, False
        for side in range(2 if two else 1):
            position_b, unique_b = nearest_point(
                x,
                root,
                at,
                dims,
                scale_b if side else scale_a,
                first,
                count,
                tables.codes,
                tables.meanings,
                margin_b if side else margin_a,
                errors,
            )
            if side == 0:
                position_a, unique_a = position_b, unique_b
    return (
        np.int32(tables.indexes[position_a]) << 16 | np.int32(tables.codes[position_a]),
        np.int32(tables.indexes[position_b]) << 16 | np.int32(tables.codes[position_b]),
        unique_a and margin_a > MIN_NORMAL,
        unique_b and margin_b > MIN_NORMAL,
    )


@inlined
def _push(
    intervals: Words, end: int, lane: int, low: int, high: int, number: int, lower: int, upper: int, clear: int
) -> int:
    """Add an interval low … high of a lane's scales to the end of the queue; result: the new end.

    Only if what is best between its ends is open. lower, upper: the best points there; clear: 3 if clearly so.
    It is written in any case, without a branch that could not be predicted.
    """
    intervals[end, 0], intervals[end, 1] = lane | low << 4 | high << 9 | clear << 14, number
    intervals[end, 2], intervals[end, 3] = lower, upper
    return end + ((high - low > 1) & ((lower != upper) | (clear != 3)))


@inlined
def _queue_runs(base: int, tries: int, tables: Tables, memory: Memory) -> Any:
    """Queue the runs of scales with the same combination in a cell, whose `numbers` begin at `base`; return how many
    there are. Runs of a grid point are not queued: it is written to `chosen`.
    """
    numbers, intervals, changes = memory.numbers, memory.intervals, memory.changes
    changed, last = every_int(1), load(numbers, base)
    for c in range(1, tries):
        number = load(numbers, base + LANES * c)
        changed |= where(number != last, every_int(1 << c), 0)
        last = number
    store(changes, 0, changed)
    waiting = np.int64(0)  # not a constant's type, for which `_push` would be compiled again
    for lane in range(LANES):
        runs = changes[lane]
        while runs != 0:
            start = lowest_bit(runs)
            runs = np.int32(runs & (runs - 1))
            number = numbers[base + LANES * start + lane]
            point, count = list_of(number, tables.entries)
            stop = lowest_bit(runs) if runs != 0 else tries
            memory.chosen[base + LANES * start + lane] = point
            intervals[waiting, 0], intervals[waiting, 1] = lane | start << 4 | (stop - 1) << 9 | FRESH << 14, number
            waiting += count != 0
    return waiting


@inlined
def _choose_points(cells: int, dims: int, tries: int, tables: Tables, memory: Memory) -> None:
    """Fill `chosen` from `numbers` and `scales`.

    Intervals of scales with the same combination are kept in a queue, which leaves few unpredictable branches.
    """
    chosen, scales, intervals, changes = memory.chosen, memory.scales, memory.intervals, memory.changes
    reach = np.float32(25 if dims == 8 else 225)
    for cell in range(cells):
        base, q = LANES * tries * cell, 0
        waiting = _queue_runs(base, tries, tables, memory)
        while q < waiting:
            packed, number = intervals[q, 0], intervals[q, 1]
            lower, upper = np.int64(intervals[q, 2]), np.int64(intervals[q, 3])
            lane, low, high, clear = packed & 15, packed >> 4 & 31, packed >> 9 & 31, packed >> 14
            first, count = list_of(number, tables.entries)
            q += 1
            fresh = clear == FRESH
            a, b = low, high
            if not fresh:  # two points inside, or one where both cost twice as much
                a, b = low + (high - low + 1) // 3, high - (high - low + 1) // 3
                if dims == 8:
                    a = b = (low + high) // 2
            low_point, high_point, low_clear, high_clear = _nearest_points(
                memory.x,
                memory.roots,
                LANES * dims * cell + lane,
                dims,
                scales[LANES * a + lane],
                scales[LANES * b + lane],
                a != b,
                reach * memory.sum_roots[LANES * cell + lane],
                memory.sum_squares[LANES * cell + lane],
                first,
                count,
                tables,
                memory.errors,
            )
            chosen[base + LANES * a + lane], chosen[base + LANES * b + lane] = low_point, high_point
            changes[lane] |= 1 << a | 1 << b
            low_clear, high_clear = np.int64(low_clear), np.int64(high_clear)
            between = low_clear | high_clear << 1
            waiting = _push(intervals, waiting, lane, a, b, number, low_point, high_point, between)
            if not fresh:
                waiting = _push(intervals, waiting, lane, low, a, number, lower, low_point, clear & 1 | low_clear << 1)
                waiting = _push(intervals, waiting, lane, b, high, number, high_point, upper, high_clear | clear & 2)
        changed, point = load(changes, 0), load(chosen, base)
        for c in range(1, tries):
            at = base + LANES * c
            point = where((changed & (1 << c)) != 0, load(chosen, at), point)
            store(chosen, at, point)


@inlined
def _best_scale(scale: Lanes, weights: Floats, at: int, cells: int, dims: int, tries: int, memory: Memory) -> Lanes:
    """Return the best scale for the points in `memory.chosen`, `scale` where none is any good; write to
    `memory.winner` which try it is, and it to `memory.final`.
    """
    best, winner = every(np.float32(0)), every_int(-1)
    for c in range(tries):
        sum_qx, sum_qq = _sums(memory.products, weights, at, cells, dims, memory.chosen, tries, c)
        win = (sum_qq > np.float32(0)) & (sum_qx * sum_qx > best * sum_qq)
        scale = where(win, sum_qx / sum_qq, scale)
        best = where(win, scale * sum_qx, best)
        winner = where(win, every_int(c), winner)
    store(memory.winner, 0, winner)
    store(memory.final, 0, scale)
    return scale


@inlined
def search_group(
    weights: Floats,
    at: int,
    cells: int,
    dims: int,
    peak: Lanes,
    scale: Lanes,
    tried: Floats,
    refit: int,
    tables: Tables,
    memory: Memory,
    points: Words,
) -> Lanes:
    """Return the best scale found for `memory.x`, with `points` (index << 16 | code) chosen for it.
    peak: what tried[k] is mapped to, not 0 where the result matters. scale: the result, with zero points, where no try
    is any good. refit: see `point_search`.
    """
    x, numbers, chosen, which, final = memory.x, memory.numbers, memory.chosen, memory.winner, memory.final
    again, tries, span = memory.again, tried.size, every(np.float32(0))
    for i in range(0, LANES * dims * cells, LANES):
        span = larger(absolute(load(x, i)), span)
    _prepare(weights, at, cells, dims, memory)
    for c in range(tries):
        inverse = tried[c] / peak
        store(memory.scales, LANES * c, np.float32(1) / inverse)
        _combinations(x, cells, dims, inverse, span, numbers, tries, c)
    _choose_points(cells, dims, tries, tables, memory)
    scale = _best_scale(scale, weights, at, cells, dims, tries, memory)
    _combinations(x, cells, dims, absolute(np.float32(1) / scale), span, points, np.int64(1), np.int64(0))
    for lane in range(LANES):
        c = which[lane]
        off_grid = refit == REFIT_ALWAYS or (c < 0 and refit == REFIT_IF_OFF_GRID)
        for cell in range(cells):
            if c >= 0 and list_of(numbers[LANES * (tries * cell + c) + lane], tables.entries)[1] != 0:
                off_grid = True
        again[lane] = off_grid and final[lane] > 0
        for cell in range(cells):
            base = LANES * tries * cell + lane
            point = chosen[base + LANES * c] if c >= 0 else 0
            on_grid = c < 0 or list_of(numbers[base + LANES * max(c, 0)], tables.entries)[1] == 0
            if again[lane] and not (refit == REFIT_OFF_GRID_CELLS and on_grid):
                point, count = list_of(points[LANES * cell + lane], tables.entries)
                if count != 0:
                    position, _ = nearest_point(
                        x,
                        memory.roots,
                        LANES * dims * cell + lane,
                        dims,
                        final[lane],
                        point,
                        count,
                        tables.codes,
                        tables.meanings,
                        np.float32(0),
                        memory.errors,
                    )
                    point = np.int32(tables.indexes[position]) << 16 | np.int32(tables.codes[position])
            points[LANES * cell + lane] = point
    sum_qx, sum_qq = _sums(memory.products, weights, at, cells, dims, points, np.int64(1), np.int64(0))
    return where((load(again, 0) != 0) & (sum_qq > np.float32(0)), sum_qx / sum_qq, scale)


@inlined
def load_weighted(
    x: Floats, importance: Floats, first: int, mean_factor: np.float32, plain_factor: np.float32, blocks: Blocks
) -> None:
    """Lay sixteen super-blocks side by side, and their weights.

    Weights: importance * sqrt(mean_factor * mean + x * x); without importance plain_factor * mean + x * x.
    """
    load_blocks(x, first, SUPER, 0, blocks)
    mean = sum_of_squares(blocks.x, 0, SUPER) / np.float32(SUPER)
    if importance.size:
        load_importance(x, importance, first, SUPER, blocks.starts, blocks.weights)
        weigh(blocks.x, blocks.weights, mean_factor * mean, SUPER)
    else:
        for i in range(0, LANES * SUPER, LANES):
            v = load(blocks.x, i)
            store(blocks.weights, i, plain_factor * mean + v * v)


@inlined
def number_scales(scales: Floats, top: Lanes, max_code: int, groups: int, codes: Words) -> Lanes:
    """Compute codes l up to `max_code` such that each scale is near (2 * l + 1) * d, for scales up to top; return d."""
    d = top / np.float32(2 * max_code + 1)
    inverse = where(top > np.float32(0), np.float32(1) / d, every(np.float32(0)))
    for g in range(0, LANES * groups, LANES):
        level = nearest_int(np.float32(0.5) * (inverse * load(scales, g) - np.float32(1)))
        store(codes, g, larger(every_int(0), smaller(every_int(max_code), level)))
    return d


@inlined
def put_result(d: Lanes, first: int, dims: int, groups: int, blocks: Blocks, result: Result) -> None:
    """Store the results of the super-blocks from `first` on, except `alive`."""
    halves = blocks.minimum_codes
    store(halves, 0, to_half(d))
    for lane in range(min(LANES, result.d.size - first)):
        result.d[first + lane] = halves[lane]
        for g in range(groups):
            result.levels[first + lane, g] = blocks.scale_codes[LANES * g + lane]
        for k in range(SUPER // dims):
            result.indexes[first + lane, k] = blocks.codes[LANES * k + lane] >> 16
        for k in range(SUPER // 8):
            result.signs[first + lane, k] = blocks.words[LANES * k + lane]
