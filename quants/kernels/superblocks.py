"""Shared by the K formats: 256 values with one or two half-precision scales, cut into sub-blocks with small scales.

As everywhere in `kernels`, sixteen super-blocks lie side by side, one a lane.
"""

import numpy as np

from .blocks import Floats, Memory, Words, load_importance, sum_of_squares, weigh
from .jit import inlined, inlined_once
from .lane_memory import load, store
from .lanes import LANES, Lanes, absolute, any_lane, every, nearest, round_even
from .scales import ZERO

BLOCK_VALUES = 256
ALMOST_HALF, SURE = np.float32(0.4999), np.float32(2**20)
FOUR_BITS, TWO_BITS = 0x0F0F0F0F, 0x03030303  # in each byte of a word


@inlined
def importance_weights(
    x: Floats, importance: Floats, first: int, factor: np.float32, count: int, memory: Memory
) -> None:
    """Compute weights = importance * sqrt(factor * mean square of the super-block + x * x), and sums of each
    sub-block's.
    """
    side, weights = memory.x, memory.weights
    load_importance(x, importance, first, BLOCK_VALUES, memory.starts, weights)
    weigh(side, weights, factor * sum_of_squares(side, 0, BLOCK_VALUES) / np.float32(BLOCK_VALUES), BLOCK_VALUES)
    for j in range(BLOCK_VALUES // count):
        total = every(ZERO)
        for i in range(LANES * count * j, LANES * count * (j + 1), LANES):
            total += load(weights, i)
        store(memory.sums, LANES * j, total)


@inlined
def nearest_quotient(v: Lanes, divisor: Lanes, inverse: Lanes) -> Lanes:
    """Compute nearest(v / divisor) with few divisions: exact where the result is -256 … 256, elsewhere at least on the
    same side.

    v * inverse is within one part in 2**22 of the quotient, so that only near a half are their integers in doubt.
    """
    guess = v * inverse
    code = round_even(guess)
    doubtful = ~(absolute(guess - code) < ALMOST_HALF) | ~(absolute(guess) < SURE)
    if any_lane(doubtful):
        return nearest(v / divisor)
    return code


@inlined_once
def four(codes: Words, first: int) -> Lanes:
    """Return codes first … first + 3 of each lane, each under 256, as the bytes of a word."""
    at = LANES * first
    low = load(codes, at) | (load(codes, at + LANES) << 8)
    return low | ((load(codes, at + 2 * LANES) | (load(codes, at + 3 * LANES) << 8)) << 16)


@inlined
def pair_words(packed: Words, words: Words) -> None:
    """Pack 256 codes of 2 bits into 16 words, from codes packed four to a word.

    Byte l of 32 carries codes l, l + 32, l + 64, l + 96 of 128, from the lowest bits up.
    """
    for k in range(16):
        at = LANES * (32 * (k // 8) + k % 8)
        low = (load(packed, at) & 0x03030303) | ((load(packed, at + 8 * LANES) & 0x03030303) << 2)
        high = (load(packed, at + 16 * LANES) & 0x03030303) | ((load(packed, at + 24 * LANES) & 0x03030303) << 2)
        store(words, LANES * k, low | (high << 4))
