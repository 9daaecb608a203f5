"""Choose points of a grid one step after another; carry each step's error to the columns after it.

A step is eight values: one point of eight, or two of four. The error that later columns cannot make up for is the
square of s, s U = error, U the factor's part for the step: s_i depends on the values up to i alone. So points are
searched value by value, the nearest level first, and a prefix that costs more than the best point so far is pruned with
everything that begins with it (Schnorr and Euchner 1994; Agrell et al. 2002).

The sixteen lanes are the options for a value: eight levels, and the same with the other sign (or moved the other way).
"""

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .blocks import Bytes, Floats, Words
from .feedback import carry_error
from .grids import grid_levels
from .jit import inlined, kernel
from .lane_memory import load, rooms, store
from .lanes import LANES, every, lane_numbers, lowest_bit, mask_bits, smallest_lane, where

STEP = 8
FREE, EVEN, ALIKE = 8, 7, 1  # bits of signs for a step or point
MAX_TRIED = 2000


@cache
def tree(name: str) -> tuple[NDArray[np.int16], Words]:
    """Return the grid called `name` as a tree, and the lanes of its first point.

    int16 (nodes, 16): the next node when the next value has this level, below 0 where no point begins so; for the last
    value, the point's number. Lanes from 8 on are as those below. Node 0 is the root.
    """
    levels = grid_levels(name).astype(np.intp)
    nodes, rows = np.zeros(len(levels), np.intp), [np.full(8, -1, np.int16)]
    for place in range(levels.shape[1]):
        last = place == levels.shape[1] - 1
        for i, (node, level) in enumerate(zip(nodes, levels[:, place], strict=True)):
            if last:
                rows[node][level] = i
            else:
                if rows[node][level] < 0:
                    rows[node][level] = len(rows)
                    rows.append(np.full(8, -1, np.int16))
                nodes[i] = rows[node][level]
    table = np.tile(np.stack(rows), 2)
    table.flags.writeable = False
    return table, np.resize(levels[0], STEP).astype(np.int32)


class Memory(NamedTuple):
    """Working memory of the search; one entry for each of a step's values where noted."""

    left: Floats  # for each number of values chosen, the targets of those after them
    costs: Floats  # of each lane
    own: Floats  # a group's columns
    totals: Floats  # costs so far
    nodes: Words
    turned: Words  # signs so far: whether their number is odd, or the point's own
    chosen: Words  # lanes
    best: Words
    tried: Words  # lanes of a group
    kept: Words


def working_memory(group: int) -> Memory:
    floats = rooms(STEP + 1, STEP, group, 1)
    return Memory(*floats, *(array.view(np.int32) for array in rooms(1, 1, 1, 1, group, group)))


@inlined
def _lay_out(
    depth: int, means: Floats, at: int, blocks: Floats, step: int, nodes: Any, dims: int, signs: int, memory: Memory
) -> None:
    """Compute the costs of the options for value number `depth` of a step."""
    node = 0 if depth % dims == 0 else memory.nodes[depth]
    error = (memory.left[LANES * depth + depth] - load(means, at)) * blocks[LANES * (STEP * step + depth) + LANES - 1]
    cost = error * error + memory.totals[depth]
    allowed = load(nodes, LANES * node) >= 0
    if (signs == EVEN and depth == STEP - 1) or (signs == ALIKE and depth % dims != 0):
        allowed &= lane_numbers() >> 3 == memory.turned[depth]
    store(memory.costs, LANES * depth, where(allowed, cost, every(np.float32(np.inf))))


@inlined
def _nearest(
    means: Floats, at: int, blocks: Floats, step: int, nodes: Any, dims: int, signs: int, limit: float, memory: Memory
) -> Any:
    """Return the smallest cost of a step, with `memory.best`; `limit` if all cost that or more.

    memory.left begins with the target values.
    """
    depth, tried, best = 0, 0, limit
    memory.totals[0], memory.turned[0] = 0, 0
    _lay_out(0, means, at, blocks, step, nodes, dims, signs, memory)
    while depth >= 0:
        costs = load(memory.costs, LANES * depth)
        smallest = smallest_lane(costs)
        if not smallest < best:
            depth -= 1
            continue
        lane = lowest_bit(mask_bits(costs == smallest))
        store(memory.costs, LANES * depth, where(lane_numbers() == lane, every(np.float32(np.inf)), costs))
        memory.chosen[depth] = lane
        tried += 1
        if depth == STEP - 1:
            best = smallest
            for i in range(STEP):
                memory.best[i] = memory.chosen[i]
            depth -= 1
        elif tried > MAX_TRIED and best < limit:
            break
        else:
            row = LANES * (STEP * step + depth)
            here = load(memory.left, LANES * depth)
            error = (memory.left[LANES * depth + depth] - means[at + lane]) * blocks[row + LANES - 1]
            store(memory.left, LANES * (depth + 1), here - error * load(blocks, row))
            memory.nodes[depth + 1] = nodes[LANES * (0 if depth % dims == 0 else memory.nodes[depth]) + lane]
            memory.turned[depth + 1] = lane >> 3 ^ (memory.turned[depth] if signs == EVEN else 0)
            memory.totals[depth + 1] = smallest
            depth += 1
            _lay_out(depth, means, at, blocks, step, nodes, dims, signs, memory)
    return best


@inlined
def _try_scale(
    left: Floats,
    at: int,
    begin: int,
    group: int,
    upper: Floats,
    carried: int,
    blocks: Floats,
    held_back: Floats,
    means: Floats,
    means_at: int,
    nodes: Any,
    dims: int,
    signs: int,
    limit: float,
    memory: Memory,
) -> Any:
    """Return what a group of columns, the block's from `begin` on, costs with a scale; write its lanes to
    `memory.tried`.

    Any number from `limit` on if it is not less than that; lanes are incomplete then.
    """
    for i in range(group):
        memory.own[i] = left[at + i]
    total = np.float32(0)
    for j in range(0, group, STEP):
        for i in range(STEP):
            memory.left[i] = memory.own[j + i]
        total += _nearest(means, means_at, blocks, (begin + j) // STEP, nodes, dims, signs, limit - total, memory)
        if not total < limit:
            break
        for i in range(j, j + STEP):
            lane, row = memory.best[i - j], (begin + i) * carried + begin
            memory.tried[i] = lane
            error, moved = memory.own[i] - means[means_at + lane], left[at + i] - means[means_at + lane]
            total += held_back[begin + i] * moved * moved
            error /= upper[row + i]
            for k in range(i, group):
                memory.own[k] -= error * upper[row + k]
    return total


@inlined
def _carry(
    left: Floats,
    at: int,
    begin: int,
    group: int,
    upper: Floats,
    carried: int,
    means: Floats,
    means_at: int,
    errors: Floats,
    memory: Memory,
) -> None:
    """Carry the errors of a group whose lanes are `memory.kept` to all columns after it."""
    for i in range(group):
        here = at + begin + i
        error = (left[here] - means[means_at + memory.kept[i]]) / upper[(begin + i) * carried + begin + i]
        errors[here] = error
        carry_error(left, at, upper, carried, begin + i, error)


@inlined
def _put_points(
    nodes: NDArray[np.int16], at: int, group: int, dims: int, memory: Memory, points: NDArray[np.uint16], bits: Bytes
) -> None:
    """Write the numbers of the points and the sign bits of a group whose lanes are `memory.kept`, column `at` on."""
    node, turned = 0, 0
    for i in range(group):
        lane = memory.kept[i]
        node = nodes[LANES * (0 if i % dims == 0 else node) + lane]
        turned = (0 if i % STEP == 0 else turned) | lane >> 3 << i % STEP
        points[(at + i) // dims] = node  # the last of the point's stays
        bits[(at + i) // STEP] = turned


@kernel
def choose_points(  # over 60 lines, of which 37 are arguments
    left: Floats,
    rows: int,
    stride: int,
    start: int,
    upper: Floats,
    carried: int,
    blocks: Floats,
    held_back: Floats,
    table: Floats,
    scales: int,
    group: int,
    columns: int,
    nodes: NDArray[np.int16],
    first: Words,
    dims: int,
    signs: int,
    memory: Memory,
    which: Bytes,
    points: NDArray[np.uint16],
    bits: Bytes,
    errors: Floats,
) -> None:
    """Choose scales and points of `columns` columns of `left` from `start` on. All arrays are flat.

    left, rows, stride, start, upper, carried, columns, errors: see `feedback.round_columns`. blocks (columns / 8, 8,
    16): of the factor what is within each step, and last in every row 1 / its diagonal. held_back (columns,): what a
    squared error adds to the cost of a scale. table (scales, rows, columns / group, 16): what lanes mean with each
    scale that is tried. nodes, first: the grid's `tree`. dims: values of a point. signs: bits of signs.
    Filled in: which (rows, columns / group), the scale; points (rows, columns / dims), their numbers; bits (rows,
    columns / 8), signs.
    """
    groups = columns // group
    for r in range(rows):
        own = r * stride + start
        for g in range(groups):
            begin, min_total = g * group, np.float32(np.inf)
            for i in range(group):
                memory.kept[i] = first[i % STEP]  # where nothing is finite
            for scale in range(scales):
                total = _try_scale(
                    left,
                    own + begin,
                    begin,
                    group,
                    upper,
                    carried,
                    blocks,
                    held_back,
                    table,
                    LANES * ((scale * rows + r) * groups + g),
                    nodes,
                    dims,
                    signs,
                    min_total,
                    memory,
                )
                if total < min_total:
                    min_total = total
                    which[r * groups + g] = scale
                    for i in range(group):
                        memory.kept[i] = memory.tried[i]
            means_at = LANES * ((which[r * groups + g] * rows + r) * groups + g)
            _carry(left, own, begin, group, upper, carried, table, means_at, errors, memory)
            _put_points(nodes, r * columns + begin, group, dims, memory, points, bits)
