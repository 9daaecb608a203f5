"""What the K formats share: 256 values with one or two half-precision scales, cut into sub-blocks with small scales.

As everywhere in `kernels`, sixteen super-blocks lie side by side, one a lane.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..format import Format
from .blocks import Bytes, Floats, Offsets, Words, bytes_to_words, column_offsets, flat, raw_rows, sum_of_squares, weigh
from .half import from_half, to_half
from .jit import Kernels, inlined, inlined_once
from .lane_memory import block_offsets, load, room_for_floats, room_for_words, store, transpose
from .lanes import (
    LANES,
    Lanes,
    absolute,
    any_lane,
    every,
    larger,
    nearest,
    round_even,
    smaller,
    to_float,
    to_int,
    where,
)
from .scales import ONE, ZERO, linear_codes, offset_codes, positive_scale, scale_and_minimum, signed_codes, signed_scale
from .wide_lanes import GROUPS, store_wide

BLOCK_VALUES = 256
ALMOST_HALF, SURE = np.float32(0.4999), np.float32(2**20)
FOUR_BITS, TWO_BITS = 0x0F0F0F0F, 0x03030303  # in each byte of a word


class Memory(NamedTuple):
    """Arrays of an encoder, for sixteen super-blocks."""

    starts: Offsets  # where they are read,
    targets: Offsets  # where they are written,
    columns: Offsets  # and where the importance of their columns is
    x: Floats
    weights: Floats
    scratch: Floats
    limited: Floats  # values, so that their codes are within bounds
    scales: Floats  # of each sub-block; results of the search for them
    minima: Floats
    lows: Floats
    inverses: Floats
    sums: Floats  # of weights
    room: Floats
    scale_codes: Words  # scales and minima as they are stored
    minimum_codes: Words
    codes: Words
    words: Words  # to be written


def working_memory(subs: int) -> Memory:
    """For super-blocks of `subs` sub-blocks."""
    return Memory._make([
        *(np.empty(LANES, np.int64) for _ in range(3)), *(room_for_floats(BLOCK_VALUES) for _ in range(4)),
        *(room_for_floats(subs) for _ in range(6)), *(room_for_words(subs) for _ in range(2)),
        room_for_words(BLOCK_VALUES), room_for_words(BLOCK_VALUES),
    ])  # fmt: skip


def encode_rows(
    kernels: Kernels, subs: int, form: Format, rows: Floats, importance: Floats | None
) -> Bytes:
    """Rows in a format of `subs` sub-blocks."""
    raw, memory = raw_rows(form, rows), working_memory(subs)
    if importance is None:
        kernels.encode(flat(rows), memory, raw.reshape(-1))
    else:
        kernels.weighted(flat(rows), flat(importance), memory, raw.reshape(-1))
    return raw


@inlined
def load_blocks(x: Floats, first: int, block_bytes: int, memory: Memory) -> None:
    """Lay super-blocks first … first + 15 side by side."""
    block_offsets(first, x.size // BLOCK_VALUES, BLOCK_VALUES, memory.starts)
    block_offsets(first, x.size // BLOCK_VALUES, block_bytes, memory.targets)
    transpose(x, memory.starts, BLOCK_VALUES, memory.x)


@inlined
def load_importance(x: Floats, importance: Floats, first: int, memory: Memory) -> None:
    """The importance of the same values, as their weights."""
    count, per_row = x.size // BLOCK_VALUES, importance.size // BLOCK_VALUES
    column_offsets(first, count, BLOCK_VALUES, per_row, memory.columns)
    transpose(importance, memory.columns, BLOCK_VALUES, memory.weights)


@inlined
def importance_weights(factor: np.float32, count: int, memory: Memory) -> None:
    """weights = importance * sqrt(factor * mean square of the super-block + x * x), and sums of each sub-block's."""
    x, weights = memory.x, memory.weights
    mean = factor * sum_of_squares(x, 0, BLOCK_VALUES) / np.float32(BLOCK_VALUES)
    weigh(x, weights, mean, BLOCK_VALUES, weights)
    for j in range(BLOCK_VALUES // count):
        total = every(ZERO)
        for i in range(LANES * count * j, LANES * count * (j + 1), LANES):
            total += load(weights, i)
        store(memory.sums, LANES * j, total)


@inlined
def find_scales_and_minima(
    count: int, top: np.float32, first: np.float32, step: np.float32, steps: int, absolute_error: bool, memory: Memory
) -> None:
    """`scale_and_minimum` of each sub-block of `count` values."""
    for j in range(0, BLOCK_VALUES // count, GROUPS):
        scale, minimum, low, inverse = scale_and_minimum(
            memory.x, memory.weights, LANES * count * j, count, top, first, step, steps, absolute_error, memory.scratch
        )
        store_wide(memory.scales, LANES * j, LANES, scale)
        store_wide(memory.minima, LANES * j, LANES, minimum)
        store_wide(memory.lows, LANES * j, LANES, low)
        store_wide(memory.inverses, LANES * j, LANES, inverse)


@inlined
def linear_scales(subs: int, top: np.float32, memory: Memory) -> tuple[Lanes, Lanes]:
    """Scales and minima in proportion to the largest of each; returns d and dmin as float16."""
    d = linear_codes(memory.scales, subs, top, memory.scale_codes)
    return to_half(d), to_half(linear_codes(memory.minima, subs, top, memory.minimum_codes))


@inlined
def weighted_scales(subs: int, top: np.float32, memory: Memory) -> tuple[Lanes, Lanes]:
    """Scales and minima by weighted least squares; returns d and dmin as float16."""
    d = positive_scale(memory.scales, memory.sums, subs, top, memory.room, memory.scale_codes)
    return to_half(d), to_half(positive_scale(memory.minima, memory.sums, subs, top, memory.room, memory.minimum_codes))


@inlined
def find_signed_scales(count: int, top: np.float32, memory: Memory) -> None:
    """`signed_scale` of each sub-block of `count` values: the scale, and for the codes its inverse."""
    far = LANES * count
    for j in range(0, BLOCK_VALUES // count, GROUPS):
        scale, inverse = signed_scale(
            memory.x, memory.weights, memory.scratch, memory.limited, far * j, count, top, far
        )
        store_wide(memory.scales, LANES * j, LANES, scale)
        store_wide(memory.inverses, LANES * j, LANES, inverse)


@inlined
def nearest_quotient(v: Lanes, divisor: Lanes, inverse: Lanes) -> Lanes:
    """nearest(v / divisor) with few divisions: the same where that is -256 … 256, elsewhere at least on the same side.

    v * inverse is within one part in 2**22 of the quotient, so that only near a half are their integers in doubt.
    """
    guess = v * inverse
    code = round_even(guess)
    doubtful = ~(absolute(guess - code) < ALMOST_HALF) | ~(absolute(guess) < SURE)
    if any_lane(doubtful):
        return nearest(v / divisor)
    return code


@inlined
def requantize_offset(count: int, top: np.float32, d: Lanes, dmin: Lanes, memory: Memory) -> None:
    """Codes 0 … top of sub-blocks of `count` values by their stored scales: nearest (x + dmin * minimum) / (d * scale).

    d, dmin: float16. Where a scale is 0 the search's codes stay. Four codes to a word.
    """
    x, codes = memory.x, memory.codes
    d, dmin = from_half(d), from_half(dmin)
    for j in range(BLOCK_VALUES // count):
        scale = d * to_float(load(memory.scale_codes, LANES * j))
        minimum = dmin * to_float(load(memory.minimum_codes, LANES * j))
        gone = scale == ZERO
        divisor = where(gone, ONE, scale)
        reciprocal = ONE / divisor
        at = LANES * count * j
        for i in range(at, at + LANES * count, LANES):
            code = nearest_quotient(load(x, i) + minimum, divisor, reciprocal)
            store(codes, i, to_int(larger(smaller(code, top), ZERO)))
        if any_lane(gone):
            low, inverse = load(memory.lows, LANES * j), load(memory.inverses, LANES * j)
            for i in range(at, at + LANES * count, LANES):
                old = to_int(offset_codes(load(x, i), low, inverse, top))
                store(codes, i, where(gone, old, load(codes, i)))
    bytes_to_words(codes, codes, BLOCK_VALUES)


@inlined
def requantize_signed(
    count: int, top: np.float32, d: Lanes, old: Floats, inverses: Floats | None, memory: Memory
) -> None:
    """Codes 0 … 2 * top - 1 of sub-blocks of `count` values by their stored scales: nearest x / (d * scale), plus top.

    d: float16. Where a scale is 0 the search's codes stay: `old`, -top … top - 1, or what `inverses` give, and `old` is
    just room.
    """
    x, codes = memory.x, memory.codes
    d = from_half(d)
    for j in range(BLOCK_VALUES // count):
        scale = d * to_float(load(memory.scale_codes, LANES * j))
        gone = scale == ZERO
        divisor = where(gone, ONE, scale)
        reciprocal = ONE / divisor
        at = LANES * count * j
        for i in range(at, at + LANES * count, LANES):
            code = nearest_quotient(load(x, i), divisor, reciprocal)
            store(codes, i, to_int(larger(smaller(code, top - ONE), -top) + top))
        if any_lane(gone):
            if inverses is not None:
                inverse = load(inverses, LANES * j)
                for i in range(at, at + LANES * count, LANES):
                    store(old, i, where(inverse == ZERO, -top, signed_codes(load(x, i), inverse, top)))
            for i in range(at, at + LANES * count, LANES):
                store(codes, i, where(gone, to_int(load(old, i) + top), load(codes, i)))


@inlined_once
def four(codes: Words, first: int) -> Lanes:
    """Codes first … first + 3 of each lane, each under 256, as the bytes of a word."""
    at = LANES * first
    low = load(codes, at) | (load(codes, at + LANES) << 8)
    return low | ((load(codes, at + 2 * LANES) | (load(codes, at + 3 * LANES) << 8)) << 16)


@inlined
def pair_words(packed: Words, words: Words) -> None:
    """16 words of 256 codes of 2 bits, from codes packed four to a word.

    Byte l of 32 carries codes l, l + 32, l + 64, l + 96 of 128, from the lowest bits up.
    """
    for k in range(16):
        at = LANES * (32 * (k // 8) + k % 8)
        low = (load(packed, at) & 0x03030303) | ((load(packed, at + 8 * LANES) & 0x03030303) << 2)
        high = (load(packed, at + 16 * LANES) & 0x03030303) | ((load(packed, at + 24 * LANES) & 0x03030303) << 2)
        store(words, LANES * k, low | (high << 4))
