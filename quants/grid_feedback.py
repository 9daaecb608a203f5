"""GPTQ error feedback in the formats with grids: choose points step by step, and scales near the block's own."""

import numpy as np
from numpy.typing import NDArray

from .bit_fields import put, put_parts
from .codes import Points
from .format import Format
from .kernels.grids import grid_levels
from .kernels.lanes import LANES
from .kernels.points import EVEN, STEP, choose_points, tree, working_memory
from .near_scales import HELD_BACK, with_scales_near

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
Numbers = NDArray[np.uint16]

MOVES = (-1, 1)  # offsets to the encoder's scale number that are also tried


def choose(
    form: Format, points: Points, blocks: Bytes, own: Floats, at: int, upper: Floats, errors: Floats, weights: Floats
) -> None:
    """Choose scales and points of blocks (n, bytes) for the columns of `own` (n, columns) from `at` on.

    The blocks' scales are given and may change; `own` changes by the errors carried on. upper: the factor's rows and
    columns from `at` on. errors: as `own`, filled in. weights: of the block's columns.
    """
    n, size, dims = len(blocks), form.block_size, grid_levels(points.grid).shape[1]
    groups = size // points.group
    tried = with_scales_near(blocks, groups, [(points.scale, MOVES)])
    tables = meanings(form, points, tried.blocks.reshape(-1, form.block_bytes))
    nodes, first = tree(points.grid)
    which, signs = np.zeros((n, groups), np.uint8), np.empty((n, size // STEP), np.uint8)
    numbers = np.empty((n, size // dims), np.uint16)
    choose_points(
        own.reshape(-1),
        n,
        own.shape[1],
        at,
        upper.reshape(-1),
        len(upper),
        _within_steps(upper, size).reshape(-1),
        weights * HELD_BACK,
        tables.reshape(-1),
        len(tried.blocks),
        points.group,
        size,
        nodes.reshape(-1),
        first,
        dims,
        points.signs.bits if points.signs else 0,
        working_memory(points.group),
        which.reshape(-1),
        numbers.reshape(-1),
        signs.reshape(-1),
        errors.reshape(-1),
    )
    tried.take(blocks, which)
    put_parts(points.indexes, blocks, numbers)
    if points.signs:
        put(points.signs, blocks, signs.astype(np.uint16))


def _within_steps(upper: Floats, size: int) -> Floats:
    """Return the part of an upper triangle within each step, with 1 / its diagonal last in each row: (steps, STEP,
    LANES).
    """
    steps = np.zeros((size // STEP, STEP, LANES), np.float32)
    for i, start in enumerate(range(0, size, STEP)):
        steps[i, :, :STEP] = upper[start : start + STEP, start : start + STEP]
    steps[:, :, -1] = 1 / upper.diagonal()[:size].reshape(-1, STEP)
    return steps


def meanings(form: Format, points: Points, blocks: Bytes) -> Floats:
    """Return the values of the grid's levels in each group of blocks (n, bytes), with their scales.

    float32 (n, groups, LANES), by the format's decoder: up to eight levels, then the same with all signs set. Missing
    levels are infinite.
    """
    levels = grid_levels(points.grid)
    n, groups, dims = len(blocks), form.block_size // points.group, levels.shape[1]
    work, table = blocks.copy(), np.full((n, groups, LANES), np.inf, np.float32)
    missing = set(range(int(levels.max()) + 1))
    while missing:
        point = max(range(len(levels)), key=lambda i: len(missing & set(levels[i].tolist())))
        put_parts(points.indexes, work, np.full((n, form.block_size // dims), point, np.uint16))
        for half in range(2 if points.signs else 1):
            if points.signs:
                count = form.block_size // (STEP if points.signs.bits >= EVEN else dims)
                put(points.signs, work, np.full((n, count), 255 * half, np.uint16))
            decoded = form.decode(work).reshape(n, groups, points.group)
            for i, level in enumerate(levels[point].tolist()):
                table[:, :, LANES // 2 * half + level] = decoded[:, :, i]
        missing -= set(levels[point].tolist())
    return table
