"""IQ1_S: 256 values; every 8 are a point of a grid of 2048, every 32 have a scale."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..format import Format
from ..formats.iq1_s import BLOCK
from .blocks import Bytes, Floats, field_offsets, flat, put_all, raw_rows, value_rows
from .grid_search import load_blocks
from .grids import grid_values, two_points
from .half import to_half
from .iq1 import (
    DOWN,
    LOWEST,
    UP,
    cell_numbers,
    choose_points,
    greatest_size,
    keep_best,
    meaning,
    meanings,
    sort_group,
    sorting_network,
    split_limits,
    working_memory,
)
from .jit import inlined, kernel
from .lane_memory import block_offsets, load, put_halves, room_for_floats, store
from .lanes import LANES, absolute, every, every_int, larger, smaller, to_float, where
from .neighbours import neighbours
from .rounding import nearest_int

BLOCK_VALUES, GROUP, GROUPS = 256, 32, 8
BLOCK_BYTES = BLOCK.itemsize
D, QS, QH = field_offsets(BLOCK)
ZERO_BELOW = np.float32(1e-12)
FUDGE = np.float32(1.125)  # of the stored scale, as the reference has it
NETWORK = sorting_network(GROUP)


def encode(form: Format, rows: Floats, importance: Floats) -> Bytes:
    """float32 (n, width) → uint8 (n, width / 256 * 50).

    Weight of an error: importance * sqrt(2 * mean of the block's squares + x * x).
    """
    raw = raw_rows(form, rows)
    near = neighbours("IQ1_S", 3)
    tables = near.entries.reshape(-1), near.codes, near.indexes, meanings()
    room, sums = working_memory(GROUP), tuple(room_for_floats(GROUP + 1) for _ in range(6))
    _encode(flat(rows), flat(importance), NETWORK, tables, room, sums, raw.reshape(-1))
    return raw


def decode(form: Format, raw: Bytes) -> Floats:
    """uint8 (n, k * 50) → float32 (n, k * 256)."""
    values = value_rows(form, raw)
    blocks = raw.reshape(-1).view(BLOCK)
    qh = np.ascontiguousarray(blocks["qh"]).reshape(-1)
    _decode(blocks["d"].astype(np.float32), qh, flat(raw), grid_values("IQ1_S"), values.reshape(-1))
    return values


@inlined
def _best_split(values, weights, order, sums):  # type: ignore[no-untyped-def]
    """The best split: its gain, scale, 1 if the cells are moved down, and at what places it is."""
    sum_x, sum_w, rest_up, rest_down, square_up, square_down = sums
    zero = every(np.float32(0))
    x, w = zero, zero
    for i in range(GROUP):
        store(sum_x, LANES * i, x)
        store(sum_w, LANES * i, w)
        weight = load(weights, LANES * i)
        x, w = x + weight * load(values, LANES * i), w + weight
    store(sum_x, LANES * GROUP, x)
    store(sum_w, LANES * GROUP, w)
    for i in range(0, LANES * (GROUP + 1), LANES):
        store(rest_up, i, (x - load(sum_x, i)) * UP[2])
        store(rest_down, i, (x - load(sum_x, i)) * DOWN[2])
        store(square_up, i, (w - load(sum_w, i)) * UP[2] * UP[2])
        store(square_down, i, (w - load(sum_w, i)) * DOWN[2] * DOWN[2])
    gain, scale, kinds, lows, highs = every(LOWEST), zero, every_int(0), every_int(0), every_int(0)
    for i in range(GROUP + 1):
        low = _below_first(sums, i)
        for j in range(i, GROUP + 1):
            qx_up, qq_up, qx_down, qq_down = _split_sums(sums, low, j)
            gain, scale, kinds, lows, highs = keep_best(qx_up, qq_up, 0, i, j, gain, scale, kinds, lows, highs)
            gain, scale, kinds, lows, highs = keep_best(qx_down, qq_down, 1, i, j, gain, scale, kinds, lows, highs)
    return gain, scale, kinds, lows, highs


@inlined
def _below_first(sums, i):  # type: ignore[no-untyped-def]
    """What does not depend on the second limit: sums below the first one, alone and times levels."""
    x, w = load(sums[0], LANES * i), load(sums[1], LANES * i)
    return x, w, x * UP[0], x * DOWN[0], w * UP[0] * UP[0], w * DOWN[0] * DOWN[0]


@inlined
def _split_sums(sums, low, j):  # type: ignore[no-untyped-def]
    """Sums of weight * level * x and weight * level * level, for cells moved up and for cells moved down."""
    middle = (load(sums[0], LANES * j) - low[0]) * UP[1]
    middle_square = (load(sums[1], LANES * j) - low[1]) * UP[1] * UP[1]
    return (
        low[2] + middle + load(sums[2], LANES * j), low[4] + middle_square + load(sums[4], LANES * j),
        low[3] - middle + load(sums[3], LANES * j), low[5] + middle_square + load(sums[5], LANES * j),
    )  # fmt: skip


@kernel
def _encode(x, importance, network, tables, room, sums, raw):  # type: ignore[no-untyped-def]
    count = x.size // BLOCK_VALUES
    blocks, in_order, search, of_group, of_blocks = room
    (values, carried, order), (floats, ints, start, errors), (points, downs, off_grid) = in_order, search, of_group
    scales, high, _, words, targets = of_blocks
    across, weights, zero = blocks[0], blocks[1], every(np.float32(0))
    for block in range(0, count, LANES):
        load_blocks(x, importance, block, np.float32(2), np.float32(0), blocks)
        top = zero
        for g in range(GROUPS):
            at = LANES * GROUP * g
            sort_group(across, weights, at, GROUP, network, values, carried, order)
            gain, scale, down, lows, highs = _best_split(values, carried, order, sums)
            split_limits(values, order, lows, highs, floats, ints)
            dead = (greatest_size(across, at, GROUP) < ZERO_BELOW) | (gain == LOWEST)
            mirrored = scale < zero
            scale, down = absolute(scale), where(mirrored, every_int(1) - down, down)
            for k in range(4):
                store(downs, LANES * k, down)
            store(start, 0, scale)
            cell_numbers(across, weights, at, GROUP, floats, ints, mirrored, scale, downs, points)
            choose_points(across, weights, at, 4, start, downs, tables, errors, points, off_grid)
            qx, qq = zero, zero
            for k in range(4):
                point = load(points, LANES * k)
                for i in range(8):
                    j = at + LANES * (8 * k + i)
                    q = meaning(point, i, down == 1)
                    qx, qq = qx + load(weights, j) * q * load(across, j), qq + load(weights, j) * q * q
            fit = (load(off_grid, 0) != 0) & (qx > zero) & (qq > zero)
            scale = where(dead, zero, where(fit, qx / qq, scale))
            four, bits = every_int(0), every_int(0)
            for k in range(4):
                index = where(dead, every_int(0), load(points, LANES * k) >> 16)
                four |= (index & 255) << (8 * k)
                bits |= (index >> 8) << (3 * k)
            store(words, LANES * g, four)
            store(high, LANES * g, bits | where(dead, every_int(0), down) << 15)
            store(scales, LANES * g, scale)
            top = larger(top, scale)
        d = top / np.float32(15)
        inverse = where(top > zero, np.float32(1) / d, zero)
        for g in range(GROUPS):
            level = nearest_int(np.float32(0.5) * (inverse * load(scales, LANES * g) - np.float32(1)))
            level = larger(every_int(0), smaller(every_int(7), level))
            bits = where(top > zero, load(high, LANES * g) | level << 12, load(high, LANES * g) & 0xFFF)
            if g % 2 == 0:
                store(words, LANES * (GROUPS + g // 2), bits)
            else:
                store(words, LANES * (GROUPS + g // 2), load(words, LANES * (GROUPS + g // 2)) | bits << 16)
        block_offsets(block, count, BLOCK_BYTES, targets)
        put_halves(raw, targets, D, to_half(d * FUDGE))
        put_all(raw, targets, QS, words, 12)


@kernel
def _decode(
    scales: Floats, qh: NDArray[np.uint16], raw: Bytes, grid: NDArray[np.int8],
    values: Floats,
) -> None:  # fmt: skip
    for b in range(scales.size):
        for g in range(GROUPS):
            bits = np.int64(qh[GROUPS * b + g])
            d = scales[b] * np.float32(2 * (bits >> 12 & 7) + 1)
            delta = DOWN[1] if bits & 0x8000 else UP[1]
            for k in range(2):
                at, high = BLOCK_BYTES * b + QS + 4 * g + 2 * k, bits >> (6 * k)
                points = two_points(grid, raw[at] | (high & 7) << 8, raw[at + 1] | (high & 0o70) << 5)
                store(values, BLOCK_VALUES * b + GROUP * g + LANES * k, (to_float(points) + delta) * d)
