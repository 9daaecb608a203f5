"""What the K formats share: 256 values with one or two half-precision scales, cut into sub-blocks with small scales.

As everywhere in `kernels`, sixteen super-blocks lie side by side, one a lane.
"""

import numpy as np

from .blocks import Floats, Memory, Words, bytes_to_words, load_importance, sum_of_squares, weigh
from .half import from_half, to_half
from .jit import inlined, inlined_once
from .lane_memory import load, store
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


@inlined
def importance_weights(
    x: Floats, importance: Floats, first: int, factor: np.float32, count: int, memory: Memory
) -> None:
    """weights = importance * sqrt(factor * mean square of the super-block + x * x), and sums of each sub-block's."""
    load_importance(x, importance, first, BLOCK_VALUES, memory)
    weigh(factor * sum_of_squares(memory.x, 0, BLOCK_VALUES) / np.float32(BLOCK_VALUES), BLOCK_VALUES, memory)
    for j in range(BLOCK_VALUES // count):
        total = every(ZERO)
        for i in range(LANES * count * j, LANES * count * (j + 1), LANES):
            total += load(memory.weights, i)
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
    sums, scratch = memory.sums, memory.scratch
    d = positive_scale(memory.scales, sums, subs, top, scratch, memory.scale_codes)
    return to_half(d), to_half(positive_scale(memory.minima, sums, subs, top, scratch, memory.minimum_codes))


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
