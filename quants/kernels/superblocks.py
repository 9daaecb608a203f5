"""What the K formats share: 256 values with one or two half-precision scales, cut into sub-blocks with small scales.

As everywhere in `kernels`, sixteen super-blocks lie side by side, one a lane.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .blocks import Floats, Offsets, Words, sum_of_squares, weigh
from .jit import inlined, inlined_once
from .lane_memory import load, put_quads, room_for_floats, room_for_words, store
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
    square_root,
    to_float,
    to_int,
    where,
)
from .scales import INVERSE, LOW, MINIMUM, ONE, SCALE, ZERO, offset_codes, scale_and_minimum, signed_codes, signed_scale
from .wide_lanes import GROUPS, store_wide

SIZE = 256
MOST_WORDS = 48  # of a block that are made in one go

ALMOST_HALF, SURE = np.float32(0.4999), np.float32(2**20)
WEIGHT, ROOM = 4, 5  # what `found` has after the results of a search: sums of weights, and room


def working_memory(subs: int) -> Any:
    """Arrays of an encoder of super-blocks of `subs` sub-blocks.

    Where sixteen blocks are read, written, and where their columns start; four times values, six times floats and
    twice words for each sub-block; codes; words to be written.
    """
    return (
        tuple(np.empty(LANES, np.int64) for _ in range(3)),
        tuple(room_for_floats(SIZE) for _ in range(4)),
        tuple(room_for_floats(subs) for _ in range(6)),
        tuple(room_for_words(subs) for _ in range(2)),
        room_for_words(SIZE),
        room_for_words(MOST_WORDS),
    )


@inlined
def level_weights(x: Floats, count: int, weights: Floats) -> None:
    """weights = root mean square of the sub-block + |x|: what Q4_K and Q5_K take for importance without any."""
    for at in range(0, SIZE * LANES, LANES * count):
        level = square_root(sum_of_squares(x, at, count) / np.float32(count))
        for i in range(at, at + LANES * count, LANES):
            store(weights, i, level + absolute(load(x, i)))


@inlined
def importance_weights(x: Floats, importance: Floats, factor: np.float32, weights: Floats) -> None:
    """weights = importance * sqrt(factor * mean square of the super-block + x * x)."""
    weigh(x, importance, factor * sum_of_squares(x, 0, SIZE) / np.float32(SIZE), SIZE, weights)


@inlined
def weight_sums(weights: Floats, count: int, sums: Floats) -> None:
    """Sum of the weights of each sub-block of `count` values, first to last."""
    for j in range(SIZE // count):
        total = every(ZERO)
        for i in range(LANES * count * j, LANES * count * (j + 1), LANES):
            total += load(weights, i)
        store(sums, LANES * j, total)


@inlined
def find_scales_and_minima(
    x: Floats, weights: Floats, count: int, top: np.float32, first: np.float32, step: np.float32, steps: int,
    absolute_error: bool, scratch: Floats, found: tuple[Floats, ...],
) -> None:  # fmt: skip
    """`scale_and_minimum` of each sub-block of `count` values, into the first four of `found`.

    scratch: room for GROUPS * count values a lane.
    """
    for j in range(0, SIZE // count, GROUPS):
        at = LANES * count * j
        scale, minimum, low, inverse = scale_and_minimum(
            x, weights, at, count, top, first, step, steps, absolute_error, scratch
        )
        store_wide(found[SCALE], LANES * j, LANES, scale)
        store_wide(found[MINIMUM], LANES * j, LANES, minimum)
        store_wide(found[LOW], LANES * j, LANES, low)
        store_wide(found[INVERSE], LANES * j, LANES, inverse)


@inlined
def find_signed_scales(
    x: Floats, weights: Floats, count: int, top: np.float32, scales: Floats, inverses: Floats, scratch: Floats,
    limited: Floats,
) -> None:  # fmt: skip
    """`signed_scale` of each sub-block of `count` values: the scale, and for the codes its inverse."""
    far = LANES * count
    for j in range(0, SIZE // count, GROUPS):
        scale, inverse = signed_scale(x, weights, scratch, limited, far * j, count, top, far)
        store_wide(scales, LANES * j, LANES, scale)
        store_wide(inverses, LANES * j, LANES, inverse)


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
def requantize_offset(
    x: Floats, count: int, top: np.float32, d: Lanes, dmin: Lanes, stored: tuple[Words, ...], found: tuple[Floats, ...],
    codes: Words,
) -> None:  # fmt: skip
    """Codes 0 … top of sub-blocks of `count` values by their stored scales: nearest (x + dmin * minimum) / (d * scale).

    stored: scales and minima as integers. Where a scale is 0 the search's codes stay, which `found` gives.
    """
    for j in range(SIZE // count):
        scale, minimum = d * to_float(load(stored[0], LANES * j)), dmin * to_float(load(stored[1], LANES * j))
        gone = scale == ZERO
        divisor = where(gone, ONE, scale)
        reciprocal = ONE / divisor
        at = LANES * count * j
        for i in range(at, at + LANES * count, LANES):
            code = nearest_quotient(load(x, i) + minimum, divisor, reciprocal)
            store(codes, i, to_int(larger(smaller(code, top), ZERO)))
        if any_lane(gone):
            low, inverse = load(found[LOW], LANES * j), load(found[INVERSE], LANES * j)
            for i in range(at, at + LANES * count, LANES):
                old = to_int(offset_codes(load(x, i), low, inverse, top))
                store(codes, i, where(gone, old, load(codes, i)))


@inlined
def requantize_signed(
    x: Floats, count: int, top: np.float32, d: Lanes, scales: Words, old: Floats, inverses: Floats | None, codes: Words
) -> None:
    """Codes 0 … 2 * top - 1 of sub-blocks of `count` values by their stored scales: nearest x / (d * scale), plus top.

    Where a scale is 0 the search's codes stay: `old`, -top … top - 1, or what `inverses` give, and `old` is just room.
    """
    for j in range(SIZE // count):
        scale = d * to_float(load(scales, LANES * j))
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


@inlined
def put_head(
    d: Lanes, dmin: Lanes, stored: tuple[Words, ...], words: Words, raw: NDArray[np.uint8], targets: Offsets
) -> None:
    """Write the first 16 bytes of Q4_K and Q5_K: d and dmin in half precision, 8 scales and 8 minima of 6 bits.

    Bytes 4-7: scales 0-3, and above them the upper two bits of scales 4-7. Bytes 8-11: so the minima.
    Bytes 12-15: the lower four bits of scales 4-7, and above them those of minima 4-7.
    """
    s0, s1, m0, m1 = four(stored[0], 0), four(stored[0], 4), four(stored[1], 0), four(stored[1], 4)
    store(words, 0, d | (dmin << 16))
    store(words, LANES, s0 | (((s1 >> 4) & 0x03030303) << 6))
    store(words, 2 * LANES, m0 | (((m1 >> 4) & 0x03030303) << 6))
    store(words, 3 * LANES, (s1 & 0x0F0F0F0F) | ((m1 & 0x0F0F0F0F) << 4))
    put_quads(raw, targets, 0, words, 0)


@inlined
def six_bits(raw: NDArray[np.uint8], at: int, j: int) -> tuple[int, int]:
    """Scale and minimum of sub-block j from the 12 bytes at `at`."""
    if j < 4:
        return raw[at + j] & 63, raw[at + j + 4] & 63
    low = raw[at + j + 4]
    return (low & 15) | (raw[at + j - 4] >> 6) << 4, (low >> 4) | (raw[at + j] >> 6) << 4


@inlined_once
def four(codes: Words, first: int) -> Lanes:
    """Codes first … first + 3 of each lane, each under 256, as the bytes of a word."""
    at = LANES * first
    low = load(codes, at) | (load(codes, at + LANES) << 8)
    return low | ((load(codes, at + 2 * LANES) | (load(codes, at + 3 * LANES) << 8)) << 16)


@inlined
def nibble_words(packed: Words, words: Words) -> None:
    """32 words of 256 codes of 4 bits, from codes packed four to a word.

    Byte l of 32 carries codes l and l + 32 of 64: lower and upper four bits.
    """
    for k in range(32):
        low, high = load(packed, LANES * (16 * (k // 8) + k % 8)), load(packed, LANES * (16 * (k // 8) + k % 8 + 8))
        store(words, LANES * k, (low & 0x0F0F0F0F) | ((high & 0x0F0F0F0F) << 4))


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
