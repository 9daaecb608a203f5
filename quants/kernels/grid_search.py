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
from .lanes import (
    LANES,
    Lanes,
    absolute,
    block_offsets,
    every,
    every_int,
    inlined,
    lane_numbers,
    larger,
    load,
    lowest_bit,
    mask_bits,
    pick_of_eight,
    pick_of_four,
    round_even,
    smaller,
    smallest_lane,
    square_root,
    store,
    to_float,
    transpose,
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


@inlined
def scratch(cells: int, dims: int, tries: int) -> Any:
    """Working memory of `search_group`."""
    return (
        np.empty(LANES * cells * tries, np.int32),  # numbers of combinations, of each cell at each scale
        np.empty(LANES * cells * tries, np.int32),  # points chosen for them
        np.empty(LANES * tries, np.float32),  # the scales
        np.empty(LANES * cells * dims, np.float32),  # square roots of the weights
        np.empty(LANES * cells * dims, np.float32),  # weights times values
        np.empty(LANES * cells, np.float32),  # for each cell, sum of those roots
        np.empty(LANES * cells, np.float32),  # and the same times squared values
        np.empty(LONGEST_LIST, np.float32),  # errors of neighbours
        np.empty(tries, np.int32),  # points found in a run of scales
        np.empty((tries, 2), np.int64),  # intervals of scales still to be looked at
        np.empty(LANES * cells, np.int32),  # for each cell, a bit for each scale that has another point than the last
        np.empty(LANES, np.int32),  # which scale won
        np.empty(LANES, np.float32),  # its value
        np.empty(LANES, np.int32),  # whether points were chosen again
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
def nearest_point(
    x: Floats, root: Floats, at: int, dims: int, scale: np.float32, first: int, count: int,
    codes: NDArray[np.uint16], meanings: Floats, margin: np.float32, errors: Floats,
) -> tuple[int, bool]:  # fmt: skip
    """Where in `codes` the point of least error is, the first if several; and whether by more than `margin`."""
    values = load(meanings, 0) * scale
    t0, t1 = _term(values, x, root, at), _term(values, x, root, at + LANES)
    t2, t3 = _term(values, x, root, at + 2 * LANES), _term(values, x, root, at + 3 * LANES)
    if dims == 8:
        t4, t5 = _term(values, x, root, at + 4 * LANES), _term(values, x, root, at + 5 * LANES)
        t6, t7 = _term(values, x, root, at + 6 * LANES), _term(values, x, root, at + 7 * LANES)
    else:
        t4, t5, t6, t7 = t0, t1, t2, t3
    infinite = every(np.float32(np.inf))
    least = infinite
    for k in range(0, count, LANES):
        code = load(codes, first + k)
        if dims == 8:
            error = pick_of_four(t0, code) + pick_of_four(t1, code >> 2)
            error = error + pick_of_four(t2, code >> 4) + pick_of_four(t3, code >> 6)
            error = error + pick_of_four(t4, code >> 8) + pick_of_four(t5, code >> 10)
            error = error + pick_of_four(t6, code >> 12) + pick_of_four(t7, code >> 14)
        else:
            error = pick_of_eight(t0, code) + pick_of_eight(t1, code >> 3)
            error = error + pick_of_eight(t2, code >> 6) + pick_of_eight(t3, code >> 9)
        error = where(lane_numbers() < count - k, error, infinite)
        store(errors, k, error)
        least = smaller(error, least)
    lowest = smallest_lane(least)
    limit = lowest + margin
    found, near = -1, 0
    for k in range(0, count, LANES):
        error = load(errors, k)
        bits = mask_bits(error <= limit)
        if bits != 0:
            near += 1 if bits & (bits - 1) == 0 else 2
            exact = mask_bits(error == lowest)
            if found < 0 and exact != 0:
                found = k + lowest_bit(exact)
    return first + max(found, 0), near == 1


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
def _choose_points(x: Floats, cells: int, dims: int, tries: int, tables: Any, memory: Any) -> None:
    """`chosen`, from `numbers` and `scales`."""
    entries, codes, indexes, meanings = tables
    numbers, chosen, scales, roots, _, sum_roots, sum_squares, errors, found, intervals, changes = memory[:11]
    reach = np.float32(25 if dims == 8 else 225)
    for cell in range(cells):
        changed, last = every_int(1), load(numbers, LANES * tries * cell)
        for c in range(1, tries):
            number = load(numbers, LANES * (tries * cell + c))
            changed |= where(number != last, every_int(1 << c), 0)
            last = number
        store(changes, LANES * cell, changed)
    for lane in range(LANES):
        for cell in range(cells):
            base = LANES * tries * cell + lane
            open_runs = changes[LANES * cell + lane]
            changed = open_runs
            while open_runs != 0:
                start = lowest_bit(open_runs)
                open_runs = np.int32(open_runs & (open_runs - 1))
                stop = lowest_bit(open_runs) if open_runs != 0 else tries
                first, count = list_of(numbers[base + LANES * start], entries)
                if count == 0:
                    chosen[base + LANES * start] = first
                    continue
                known, clear, pending = 0, 0, 1
                intervals[0, 0], intervals[0, 1] = start, stop - 1
                while pending > 0:
                    low, high = intervals[pending - 1, 0], intervals[pending - 1, 1]
                    c = high if known >> low & 1 else low
                    if known >> c & 1 == 0:
                        s = scales[LANES * c + lane]
                        bound = reach * s * s * sum_roots[LANES * cell + lane] + sum_squares[LANES * cell + lane]
                        margin = TOLERANCE * bound
                        position, alone = nearest_point(
                            x, roots, LANES * dims * cell + lane, dims, s, first, count, codes, meanings, margin,
                            errors)
                        found[c] = np.int32(indexes[position]) << 16 | np.int32(codes[position])
                        known |= 1 << c
                        if alone and margin > LEAST_NORMAL:
                            clear |= 1 << c
                        continue
                    pending -= 1
                    if found[low] == found[high] and clear >> low & clear >> high & 1:
                        continue
                    if high - low > 1:
                        middle = (low + high) // 2
                        intervals[pending, 0], intervals[pending, 1] = low, middle
                        intervals[pending + 1, 0], intervals[pending + 1, 1] = middle, high
                        pending += 2
                    elif high > low:
                        chosen[base + LANES * high] = found[high]
                        changed |= 1 << high
                chosen[base + LANES * start] = found[start]
            changes[LANES * cell + lane] = changed
    for cell in range(cells):
        changed, point = load(changes, LANES * cell), load(chosen, LANES * tries * cell)
        for c in range(1, tries):
            at = LANES * (tries * cell + c)
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
    errors, which, final, again = memory[7], memory[11], memory[12], memory[13]
    tries, zero = tried.size, every(np.float32(0))
    _prepare(x, weights, at, cells, dims, memory)
    for c in range(tries):
        inverse = tried[c] / peak
        store(scales, LANES * c, np.float32(1) / inverse)
        for cell in range(cells):
            store(numbers, LANES * (tries * cell + c), _combination(x, LANES * dims * cell, dims, inverse))
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
    inverse = np.float32(1) / scale
    for cell in range(cells):
        store(points, LANES * cell, _combination(x, LANES * dims * cell, dims, inverse))
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
    sum_qx, sum_qq = _sums(wx, weights, at, cells, dims, points, 1, 0)
    return where((load(again, 0) != 0) & (sum_qq > np.float32(0)), sum_qx / sum_qq, scale)


@inlined
def load_blocks(
    x: Floats, importance: Floats, first: int, mean_factor: np.float32, plain_factor: np.float32, memory: Any
) -> None:
    """Lay sixteen super-blocks side by side, and their weights; memory: `block_scratch`.

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
def block_scratch() -> Any:
    """For `load_blocks`: values, weights, columns of the importance, offsets."""
    wide = LANES * SUPER
    return np.empty(wide, np.float32), np.empty(wide, np.float32), np.empty(wide, np.float32), np.empty(LANES, np.int64)


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
