"""The search of the IQ2 and IQ3 formats: a scale for a group of values, and a grid point for each cell of 8 or 4.

A scale and a cell's values round to a combination of levels. If no grid point is that combination, the encoder takes
the point of least weighted error from the combination's list of neighbours (`kernels.neighbours`). Scales around the
one that maps the greatest value to the greatest level are tried; the one of least weighted error wins.

Lanes are super-blocks, each with its own group; the lists are searched with sixteen neighbours in the lanes.

Most searches of lists are avoided, exactly. Error as a function of the scale s is s * (s * A - 2 * B) + C, with A and B
a point's own and C the same for all: of two points, one is better up to some scale, the other one from there on. So
where scales round to the same combination, and a point is the best at both the least and the greatest of them, it
is the best in between. That holds in float arithmetic if it wins at both ends by more than arithmetic can be wrong.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .blocks import column_offsets, sum_of_squares, weigh
from .jit import inlined
from .lane_memory import (
    block_offsets,
    load,
    pick_of_eight,
    pick_of_four,
    room_for_floats,
    room_for_words,
    store,
    transpose,
)
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
from .rounding import nearest_int

Floats = NDArray[np.float32]
Words = NDArray[np.int32]

LONGEST_LIST = 304
# A sum's error is below 28 * 2**-24 of the terms' bound, two sums are compared, and their difference may be smaller by
# the ratio of the least to the greatest scale, at least 2/3, between the scales where it was found.
TOLERANCE = np.float32(1e-5)
LEAST_NORMAL = np.float32(1e-30)  # below, relative bounds do not hold
DOUBT, DOUBTFUL = np.float32(3e-5), 1 << 16  # how near to the middle of two levels rounding may choose the farther one
POWERS = (1, 3, 9, 27, 81, 243, 729, 2187)

SUPER = 256  # values of a super-block
MOST_WORDS = 26  # of what a block stores beside its scale
HALF, FRESH = LANES // 2, 4
REFIT_ALWAYS, REFIT_OFF_GRID_CELLS, REFIT_IF_OFF_GRID = 0, 1, 2


def odd_levels(dims: int) -> Floats:
    """What the levels mean, 1, 3, 5 …, repeated as `nearest_point` picks from them."""
    few = 4 if dims == 8 else 8
    return (2 * (np.arange(LANES) % few) + 1).astype(np.float32)


def steps(highest: int, tries: int, step: float) -> Floats:
    """What the greatest value is mapped to, for each scale tried."""
    away: Floats = np.arange(-tries, tries + 1).astype(np.float32) * np.float32(step)
    tried: Floats = np.float32(highest) + away
    return tried


def working_memory(dims: int, group: int, tries: int) -> Any:
    """Arrays of an encoder for groups of `group` values in cells of `dims`: made here, because kernels that make
    arrays take much longer to compile.

    For `load_blocks`; for `search_group`; and for a group's sizes, sign bits and points, sixteen blocks' scales and
    words, and where these go.
    """
    cells = group // dims
    of_groups = (
        room_for_floats(group), room_for_words(-(-group // 8)), room_for_words(cells),
        room_for_floats(SUPER // group), room_for_words(MOST_WORDS), np.empty(LANES, np.int64),
    )  # fmt: skip
    return block_memory(), _search_memory(cells, dims, tries), of_groups


def block_memory() -> Any:
    """For `load_blocks`: values, weights, columns of the importance, offsets."""
    return room_for_floats(SUPER), room_for_floats(SUPER), room_for_floats(SUPER), np.empty(LANES, np.int64)


def _search_memory(cells: int, dims: int, tries: int) -> Any:
    return (
        room_for_words(cells * tries),  # numbers of combinations, of each cell at each scale
        room_for_words(cells * tries),  # points chosen for them
        room_for_floats(tries),  # the scales
        room_for_floats(cells * dims),  # square roots of the weights
        room_for_floats(cells * dims),  # weights times values
        room_for_floats(cells),  # for each cell, sum of those roots
        room_for_floats(cells),  # and the same times squared values
        np.empty(LONGEST_LIST, np.float32),  # errors of neighbours
        np.empty((3 * LANES * tries + 3, 4), np.int32),  # the queue of intervals of scales, see `_push`
        room_for_words(1),  # a bit for each scale at which a cell's point may be another than before
        room_for_words(1),  # which scale won
        room_for_floats(1),  # its value
        room_for_words(1),  # whether points were chosen again
    )


@inlined
def fold_signs(x: Floats, at: int, count: int, weights: Floats, even: bool, sizes: Floats, signs: Words) -> None:
    """sizes = |x|, and a word of sign bits for every eight of `count` values a lane, from at on.

    even: the number of negative signs is made even by turning the value of least weight * x * x, whose size becomes
    negative; the eighth bit is then left out.
    """
    for i in range(0, LANES * count, 8 * LANES):
        bits, least_at = every_int(0), every_int(0)
        odd = every_int(0)
        least = load(weights, at + i) * load(x, at + i) * load(x, at + i)
        for j in range(8):
            v = load(x, at + i + LANES * j)
            negative = v < np.float32(0)
            bits |= where(negative, every_int(1 << j), 0)
            odd ^= where(negative, every_int(1), 0)
            store(sizes, i + LANES * j, absolute(v))
            if even:
                cost = load(weights, at + i + LANES * j) * v * v
                least_at = where(cost < least, every_int(j), least_at)
                least = smaller(cost, least)
        if even:
            least_at = where(odd == 1, least_at, -1)
            for j in range(8):
                turn = least_at == j
                size = load(sizes, i + LANES * j)
                store(sizes, i + LANES * j, where(turn, -size, size))
                bits ^= where(turn, every_int(1 << j), 0)
            bits &= 127
        store(signs, i // 8, bits)


@inlined
def greatest(sizes: Floats, count: int) -> Lanes:
    top = load(sizes, 0)
    for i in range(LANES, LANES * count, LANES):
        top = larger(top, load(sizes, i))
    return top


@inlined
def _combination(x: Floats, at: int, dims: int, inverse: Lanes) -> Lanes:
    """Number of the combination of levels nearest to x * inverse, plus DOUBTFUL where it is barely the nearest."""
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
    """The same where x * inverse may be so great that rounding wraps, in the reference too: no nearest levels then."""
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
    """The number of each cell's combination to numbers[stride * cell + start]; span: bound of |x|."""
    if all_lanes(span * inverse < np.float32(1 << 22)):
        for cell in range(cells):
            store(numbers, LANES * (stride * cell + start), _combination(x, LANES * dims * cell, dims, inverse))
    else:
        for cell in range(cells):
            store(numbers, LANES * (stride * cell + start), _wrapped_combination(x, LANES * dims * cell, dims, inverse))


@inlined
def list_of(number: int, entries: Words) -> tuple[int, int]:
    """Start and length of the list to be searched; index << 16 | code and 0 of a grid point."""
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
    """For each value of a cell its error at each level, repeated as `pick_of_four` and `pick_of_eight` need it."""
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
    """The error of each lane's point, summed from the first value to the last."""
    t0, t1, t2, t3, t4, t5, t6, t7 = terms
    if dims == 8:
        error = pick_of_four(t0, code) + pick_of_four(t1, code >> 2)
        error = error + pick_of_four(t2, code >> 4) + pick_of_four(t3, code >> 6)
        error = error + pick_of_four(t4, code >> 8) + pick_of_four(t5, code >> 10)
        return error + pick_of_four(t6, code >> 12) + pick_of_four(t7, code >> 14)
    error = pick_of_eight(t0, code) + pick_of_eight(t1, code >> 3)
    return error + pick_of_eight(t2, code >> 6) + pick_of_eight(t3, code >> 9)


@inlined
def _first_least(error: Lanes, margin: np.float32) -> tuple[int, bool]:
    """The first lane of least error, and whether all others are greater by more than `margin`."""
    lowest = smallest_lane(error)
    near, exact = mask_bits(error <= lowest + margin), mask_bits(error == lowest)
    return lowest_bit(exact) & (LANES - 1), near & (near - 1) == 0


@inlined
def nearest_point(
    x: Floats, root: Floats, at: int, dims: int, scale: np.float32, first: int, count: int,
    codes: NDArray[np.uint16], meanings: Floats, margin: np.float32, errors: Floats,
) -> tuple[int, bool]:  # fmt: skip
    """Where in `codes` the point of least error is, the first if several; and whether by more than `margin`."""
    terms = _terms(x, root, at, dims, scale, meanings)
    infinite = every(np.float32(np.inf))
    if count <= LANES:
        error = where(lane_numbers() < count, _errors(terms, load(codes, first), dims), infinite)
        lane, alone = _first_least(error, margin)
        return first + lane, alone
    least = infinite
    for k in range(0, count, LANES):
        error = where(lane_numbers() < count - k, _errors(terms, load(codes, first + k), dims), infinite)
        store(errors, k, error)
        least = smaller(error, least)
    lowest = smallest_lane(least)
    found, near = 0, 0
    for k in range(count - 1 & -LANES, -1, -LANES):
        error = load(errors, k)
        bits, exact = mask_bits(error <= lowest + margin), mask_bits(error == lowest)
        near += (bits != 0) + (bits & (bits - 1) != 0)
        found = k + lowest_bit(exact) if exact != 0 else found
    return first + found, near == 1


@inlined
def _sums(wx: Floats, weights: Floats, at: int, cells: int, dims: int, points: Words, stride: int, start: int) -> Any:
    """Sums of weight * x * q and weight * q * q over a group, q what the points mean."""
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
def _prepare(x: Floats, weights: Floats, at: int, cells: int, dims: int, memory: Any) -> None:
    roots, wx, sum_roots, sum_squares = memory[3:7]
    for cell in range(cells):
        total, squares = every(np.float32(0)), every(np.float32(0))
        for i in range(LANES * dims * cell, LANES * dims * (cell + 1), LANES):
            v, w = load(x, i), load(weights, at + i)
            root = square_root(w)
            store(roots, i, root)
            store(wx, i, w * v)
            total, squares = total + root, squares + root * v * v
        store(sum_roots, LANES * cell, total)
        store(sum_squares, LANES * cell, squares)


@inlined
def _nearest_points(
    x: Floats, root: Floats, at: int, dims: int, scale_a: np.float32, scale_b: np.float32, two: bool,
    roots: np.float32, squares: np.float32, first: int, count: int, codes: NDArray[np.uint16],
    indexes: NDArray[np.uint16], meanings: Floats, errors: Floats,
) -> tuple[int, int, bool, bool]:  # fmt: skip
    """Points (index << 16 | code) of least error at two scales, and if they win by more than arithmetic can be wrong.

    roots, squares: what the bound of the error is made of. If not `two`, the second result is as the first.
    """
    margin_a = TOLERANCE * (roots * scale_a * scale_a + squares)
    margin_b = TOLERANCE * (roots * scale_b * scale_b + squares)
    if dims == 4 and count <= HALF:
        upper = lane_numbers() >= HALF
        values = load(meanings, 0) * where(upper, every(scale_b), scale_a)
        t0, t1 = _term(values, x, root, at), _term(values, x, root, at + LANES)
        t2, t3 = _term(values, x, root, at + 2 * LANES), _term(values, x, root, at + 3 * LANES)
        error = _errors((t0, t1, t2, t3, t0, t1, t2, t3), load(codes, first), dims)
        error = where((lane_numbers() & (HALF - 1)) < count, error, every(np.float32(np.inf)))
        lowest = smallest_of_half(error)
        near = mask_bits(error <= lowest + where(upper, every(margin_b), margin_a))
        exact = mask_bits(error == lowest)
        near_a, near_b = near & 0xFF, near >> HALF
        position_a = first + (lowest_bit(np.int32(exact & 0xFF)) & (HALF - 1))
        position_b = first + (lowest_bit(np.int32(exact >> HALF)) & (HALF - 1))
        alone_a, alone_b = near_a & (near_a - 1) == 0, near_b & (near_b - 1) == 0
    else:
        position_a, alone_a = first, False
        for side in range(2 if two else 1):
            position_b, alone_b = nearest_point(
                x, root, at, dims, scale_b if side else scale_a, first, count, codes, meanings,
                margin_b if side else margin_a, errors)
            if side == 0:
                position_a, alone_a = position_b, alone_b
    return (
        np.int32(indexes[position_a]) << 16 | np.int32(codes[position_a]),
        np.int32(indexes[position_b]) << 16 | np.int32(codes[position_b]),
        alone_a and margin_a > LEAST_NORMAL, alone_b and margin_b > LEAST_NORMAL,
    )  # fmt: skip


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
def _choose_points(x: Floats, cells: int, dims: int, tries: int, tables: Any, memory: Any) -> None:
    """`chosen`, from `numbers` and `scales`.

    Intervals of scales with the same combination are kept in a queue; that leaves few branches to be predicted.
    """
    entries, codes, indexes, meanings = tables
    numbers, chosen, scales, roots, _, sum_roots, sum_squares, errors, intervals, changes = memory[:10]
    reach = np.float32(25 if dims == 8 else 225)
    for cell in range(cells):
        changed, last = every_int(1), load(numbers, LANES * tries * cell)
        for c in range(1, tries):
            number = load(numbers, LANES * (tries * cell + c))
            changed |= where(number != last, every_int(1 << c), 0)
            last = number
        store(changes, 0, changed)
        base = LANES * tries * cell
        waiting = np.int64(0)  # not of a constant's type, for which `_push` would be compiled anew
        for lane in range(LANES):
            runs = changes[lane]
            while runs != 0:
                start = lowest_bit(runs)
                runs = np.int32(runs & (runs - 1))
                number = numbers[base + LANES * start + lane]
                point, count = list_of(number, entries)
                stop = lowest_bit(runs) if runs != 0 else tries
                chosen[base + LANES * start + lane] = point
                intervals[waiting, 0], intervals[waiting, 1] = lane | start << 4 | (stop - 1) << 9 | FRESH << 14, number
                waiting += count != 0
        q = 0
        while q < waiting:
            packed, number = intervals[q, 0], intervals[q, 1]
            lower, upper = np.int64(intervals[q, 2]), np.int64(intervals[q, 3])
            lane, low, high, clear = packed & 15, packed >> 4 & 31, packed >> 9 & 31, packed >> 14
            first, count = list_of(number, entries)
            q += 1
            fresh = clear == FRESH
            a, b = low, high
            if not fresh:  # two points inside, or one where both cost twice as much
                a, b = low + (high - low + 1) // 3, high - (high - low + 1) // 3
                if dims == 8:
                    a = b = (low + high) // 2
            low_point, high_point, low_clear, high_clear = _nearest_points(
                x, roots, LANES * dims * cell + lane, dims, scales[LANES * a + lane], scales[LANES * b + lane],
                a != b, reach * sum_roots[LANES * cell + lane], sum_squares[LANES * cell + lane], first, count,
                codes, indexes, meanings, errors)
            chosen[base + LANES * a + lane], chosen[base + LANES * b + lane] = low_point, high_point
            changes[lane] |= 1 << a | 1 << b
            low_clear, high_clear = np.int64(low_clear), np.int64(high_clear)
            between = low_clear | high_clear << 1
            waiting = _push(intervals, waiting, lane, a, b, number, low_point, high_point, between)
            if not fresh:
                waiting = _push(
                    intervals, waiting, lane, low, a, number, lower, low_point, clear & 1 | low_clear << 1)
                waiting = _push(
                    intervals, waiting, lane, b, high, number, high_point, upper, high_clear | clear & 2)
        changed, point = load(changes, 0), load(chosen, base)
        for c in range(1, tries):
            at = base + LANES * c
            point = where((changed & (1 << c)) != 0, load(chosen, at), point)
            store(chosen, at, point)


@inlined
def search_group(
    x: Floats, weights: Floats, at: int, cells: int, dims: int, peak: Lanes, scale: Lanes, tried: Floats, refit: int,
    tables: Any, memory: Any, points: Words,
) -> Lanes:  # fmt: skip
    """The best scale found, with `points` (index << 16 | code, a cell after the other) chosen for it.

    x: sizes of the group's values; weights: theirs from at on. peak: what tried[k] is mapped to, must not be 0 where
    the result matters. scale: the result where no try is any good; points are then all zero. refit: what is done again
    with the scale that won. tables: entries, codes, indexes of the grid's `Neighbours`, and `odd_levels`.
    """
    entries, codes, indexes, meanings = tables
    numbers, chosen, scales, roots, wx = memory[:5]
    errors, which, final, again = memory[7], memory[10], memory[11], memory[12]
    tries, zero = tried.size, every(np.float32(0))
    span = zero
    for i in range(0, LANES * dims * cells, LANES):
        span = larger(absolute(load(x, i)), span)
    _prepare(x, weights, at, cells, dims, memory)
    for c in range(tries):
        inverse = tried[c] / peak
        store(scales, LANES * c, np.float32(1) / inverse)
        _combinations(x, cells, dims, inverse, span, numbers, tries, c)
    _choose_points(x, cells, dims, tries, tables, memory)
    best, winner = zero, every_int(-1)
    for c in range(tries):
        sum_qx, sum_qq = _sums(wx, weights, at, cells, dims, chosen, tries, c)
        win = (sum_qq > np.float32(0)) & (sum_qx * sum_qx > best * sum_qq)
        scale = where(win, sum_qx / sum_qq, scale)
        best = where(win, scale * sum_qx, best)
        winner = where(win, every_int(c), winner)
    store(which, 0, winner)
    store(final, 0, scale)
    _combinations(x, cells, dims, absolute(np.float32(1) / scale), span, points, np.int64(1), np.int64(0))
    for lane in range(LANES):
        c = which[lane]
        off_grid = refit == REFIT_ALWAYS or (c < 0 and refit == REFIT_IF_OFF_GRID)
        for cell in range(cells):
            if c >= 0 and list_of(numbers[LANES * (tries * cell + c) + lane], entries)[1] != 0:
                off_grid = True
        again[lane] = off_grid and final[lane] > 0
        for cell in range(cells):
            base = LANES * tries * cell + lane
            point = chosen[base + LANES * c] if c >= 0 else 0
            on_grid = c < 0 or list_of(numbers[base + LANES * max(c, 0)], entries)[1] == 0
            if again[lane] and not (refit == REFIT_OFF_GRID_CELLS and on_grid):
                point, count = list_of(points[LANES * cell + lane], entries)
                if count != 0:
                    position, _ = nearest_point(
                        x, roots, LANES * dims * cell + lane, dims, final[lane], point, count, codes, meanings,
                        np.float32(0), errors)
                    point = np.int32(indexes[position]) << 16 | np.int32(codes[position])
            points[LANES * cell + lane] = point
    sum_qx, sum_qq = _sums(wx, weights, at, cells, dims, points, np.int64(1), np.int64(0))
    return where((load(again, 0) != 0) & (sum_qq > np.float32(0)), sum_qx / sum_qq, scale)


@inlined
def load_blocks(
    x: Floats, importance: Floats, first: int, mean_factor: np.float32, plain_factor: np.float32, memory: Any
) -> None:
    """Lay sixteen super-blocks side by side, and their weights; memory: `block_memory`.

    Weights: importance * sqrt(mean_factor * mean + x * x); without importance plain_factor * mean + x * x.
    """
    across, weights, columns, starts = memory
    count, per_row = x.size // SUPER, max(importance.size // SUPER, 1)
    block_offsets(first, count, SUPER, starts)
    transpose(x, starts, SUPER, across)
    mean = sum_of_squares(across, 0, SUPER) / np.float32(SUPER)
    if importance.size:
        column_offsets(first, count, SUPER, per_row, starts)
        transpose(importance, starts, SUPER, columns)
        weigh(across, columns, mean_factor * mean, SUPER, weights)
    else:
        for i in range(0, LANES * SUPER, LANES):
            v = load(across, i)
            store(weights, i, plain_factor * mean + v * v)


@inlined
def scale_levels(scales: Floats, first: int, count: int, inverse: Lanes) -> Lanes:
    """4-bit numbers l of `count` scales a lane, of which each is near (2 * l + 1) / inverse; the first one lowest."""
    packed = every_int(0)
    for j in range(count):
        level = nearest_int(np.float32(0.5) * (inverse * load(scales, LANES * (first + j)) - np.float32(1)))
        packed |= larger(every_int(0), smaller(every_int(15), level)) << (4 * j)
    return packed


@inlined
def inverse_step(top: Lanes) -> Lanes:
    """One over the step of `scale_levels` for scales up to top; 0 for 0."""
    return where(top > np.float32(0), np.float32(1) / (top / np.float32(31)), every(np.float32(0)))
