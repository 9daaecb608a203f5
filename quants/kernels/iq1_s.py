"""IQ1_S: every 8 values are a point of a grid of 2048, every 32 have a scale."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..format import Format
from ..formats.iq1_s import BLOCK
from .blocks import Bytes, Floats, field_offsets, flat, value_rows
from .grid_search import SUPER, Blocks, Tables, load_blocks
from .grids import grid_values, two_points
from .iq1 import (
    DOWN,
    LOWEST,
    UP,
    Memory,
    Result,
    fit_group,
    keep_best,
    number_scales,
    put_result,
    search_rows,
    sort_group,
)
from .jit import inlined, kernel
from .lane_memory import load, room_for_floats, store
from .lanes import LANES, every, every_int, larger, to_float

GROUP, GROUPS = 32, 8
BLOCK_BYTES, D, QS, QH = BLOCK.itemsize, *field_offsets(BLOCK)
ZERO_BELOW = np.float32(1e-12)
FUDGE = np.float32(1.125)  # of the stored scale, as llama.cpp has it


def encode(form: Format, rows: Floats, importance: Floats) -> Bytes:
    """Weight of an error: importance * sqrt(2 * mean of the block's squares + x * x)."""
    result = search_rows(_encode, GROUP, tuple(room_for_floats(GROUP + 1) for _ in range(6)), rows, importance)
    blocks = np.empty(len(result.d), BLOCK)
    high = result.indexes >> 8
    blocks["d"], blocks["qs"] = result.d.view("<f2"), result.indexes & 255
    bits = high[:, ::4] | high[:, 1::4] << 3 | high[:, 2::4] << 6 | high[:, 3::4] << 9
    blocks["qh"] = bits | result.levels.astype(np.uint16) << 12 | result.downs[:, ::4].astype(np.uint16) << 15
    return blocks.view(np.uint8).reshape(len(rows), -1)


def decode(form: Format, raw: Bytes) -> Floats:
    values, blocks = value_rows(form, raw), raw.reshape(-1).view(BLOCK)
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
def _encode(
    x: Floats, importance: Floats, network: NDArray[np.int64], tables: Tables, blocks: Blocks, memory: Memory,
    sums: tuple[Floats, ...], result: Result,
) -> None:  # fmt: skip
    count = x.size // SUPER
    for first in range(0, count, LANES):
        load_blocks(x, importance, first, np.float32(2), np.float32(0), blocks)
        top = every(np.float32(0))
        for g in range(GROUPS):
            at, points, downs = LANES * GROUP * g, memory.points[LANES * 4 * g :], memory.downs[LANES * 4 * g :]
            sort_group(blocks.x, blocks.weights, at, GROUP, network, memory.values, memory.weights, memory.order)
            gain, scale, down, lows, highs = _best_split(memory.values, memory.weights, memory.order, sums)
            for k in range(0, 4 * LANES, LANES):
                store(downs, k, down)
            scale = fit_group(at, GROUP, ZERO_BELOW, gain, scale, lows, highs, tables, blocks, memory, points, downs)
            store(memory.scales, LANES * g, scale)
            top = larger(top, scale)
        put_result(number_scales(top, GROUPS, memory) * FUDGE, first, count, GROUPS, memory, result)


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
                store(values, SUPER * b + GROUP * g + LANES * k, (to_float(points) + delta) * d)
