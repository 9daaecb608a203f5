"""Q2_K: 16 sub-blocks of 16 codes; Q4_K and Q5_K: 8 of 32. Each sub-block has a scale and a minimum.

Codes of Q5_K have a fifth bit, in the field `qh`, which Q4_K lacks.
"""

import numpy as np

from ..formats.q2_k import BLOCK as Q2
from .blocks import (
    Bytes,
    Floats,
    Kernels,
    Memory,
    bytes_to_words,
    codec,
    field_offsets,
    load_blocks,
    load_half,
    put_all,
    sum_of_squares,
)
from .half import from_half, to_half
from .jit import inlined, kernel
from .lane_memory import load, put_quads, put_words, store
from .lanes import LANES, Lanes, absolute, any_lane, larger, smaller, square_root, to_float, to_int, where
from .scales import ONE, ZERO, linear_codes, offset_codes, positive_scale, scale_and_minimum
from .superblocks import BLOCK_VALUES, FOUR_BITS, TWO_BITS, four, importance_weights, nearest_quotient, pair_words
from .wide_lanes import GROUPS, store_wide

SUBS, SUB = 8, 32
Q2_SUBS, Q2_SUB = 16, 16
Q2_BLOCK_BYTES, (Q2_SCALES, Q2_QS, Q2_D, Q2_DMIN) = Q2.itemsize, field_offsets(Q2)
DMIN, SCALES, CODES = 2, 4, 16  # where these start; codes begin with the fifth bits


@inlined
def _find_scales_and_minima(
    count: int, top: np.float32, first: np.float32, step: np.float32, steps: int, absolute_error: bool, memory: Memory
) -> None:
    """Compute `scale_and_minimum` of each sub-block of `count` values."""
    for j in range(0, BLOCK_VALUES // count, GROUPS):
        scale, minimum, low, inverse = scale_and_minimum(
            memory.x, memory.weights, LANES * count * j, count, top, first, step, steps, absolute_error, memory.scratch
        )
        store_wide(memory.scales, LANES * j, LANES, scale)
        store_wide(memory.minima, LANES * j, LANES, minimum)
        store_wide(memory.lows, LANES * j, LANES, low)
        store_wide(memory.inverses, LANES * j, LANES, inverse)


@inlined
def _linear_scales(subs: int, top: np.float32, memory: Memory) -> tuple[Lanes, Lanes]:
    """Compute scales and minima in proportion to the largest of each; return d and dmin as float16."""
    d = linear_codes(memory.scales, subs, top, memory.scale_codes)
    return to_half(d), to_half(linear_codes(memory.minima, subs, top, memory.minimum_codes))


@inlined
def _weighted_scales(subs: int, top: np.float32, memory: Memory) -> tuple[Lanes, Lanes]:
    """Compute scales and minima by weighted least squares; return d and dmin as float16."""
    sums, scratch = memory.sums, memory.scratch
    d = positive_scale(memory.scales, sums, subs, top, scratch, memory.scale_codes)
    return to_half(d), to_half(positive_scale(memory.minima, sums, subs, top, scratch, memory.minimum_codes))


@inlined
def _requantize_offset(count: int, top: np.float32, d: Lanes, dmin: Lanes, memory: Memory) -> None:
    """Compute codes 0 … top of sub-blocks of `count` values by their stored scales: nearest (x + dmin * minimum) / (d *
    scale).

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
def _put(fifth: bool, d: Lanes, dmin: Lanes, memory: Memory, raw: Bytes) -> None:
    """Write a block of Q4_K or Q5_K, as drawn in their format files."""
    codes, words, targets = memory.codes, memory.words, memory.targets
    if fifth:
        for k in range(8):
            high = (load(codes, LANES * k) >> 4) & 0x01010101
            for j in range(1, SUBS):
                high |= ((load(codes, LANES * (8 * j + k)) >> 4) & 0x01010101) << j
            store(words, LANES * k, high)
        put_all(raw, targets, CODES, words, 8)
    for k in range(32):
        low, high = load(codes, LANES * (16 * (k // 8) + k % 8)), load(codes, LANES * (16 * (k // 8) + k % 8 + 8))
        store(codes, LANES * k, low & FOUR_BITS | (high & FOUR_BITS) << 4)
    put_all(raw, targets, CODES + (32 if fifth else 0), codes, 32)
    scales, minima = memory.scale_codes, memory.minimum_codes
    s0, s1, m0, m1 = four(scales, 0), four(scales, 4), four(minima, 0), four(minima, 4)
    store(words, 0, d | dmin << 16)
    store(words, LANES, s0 | (s1 >> 4 & TWO_BITS) << 6)
    store(words, 2 * LANES, m0 | (m1 >> 4 & TWO_BITS) << 6)
    store(words, 3 * LANES, s1 & FOUR_BITS | (m1 & FOUR_BITS) << 4)
    put_quads(raw, targets, 0, words, 0)


@inlined
def _six_bits(raw: Bytes, at: int, j: int) -> tuple[int, int]:
    """Return scale and minimum of sub-block j from the 12 bytes at `at`."""
    if j < 4:
        return raw[at + j] & 63, raw[at + j + 4] & 63
    low = raw[at + j + 4]
    return (low & 15) | (raw[at + j - 4] >> 6) << 4, (low >> 4) | (raw[at + j] >> 6) << 4


@inlined
def _put_q2_k(d: Lanes, dmin: Lanes, memory: Memory, raw: Bytes) -> None:
    targets = memory.targets
    pair_words(memory.codes, memory.codes)
    put_words(raw, targets, Q2_D, d | (dmin << 16))
    for k in range(4):
        both = four(memory.scale_codes, 4 * k) | (four(memory.minimum_codes, 4 * k) << 4)
        put_words(raw, targets, Q2_SCALES + 4 * k, both)
    put_all(raw, targets, Q2_QS, memory.codes, 16)


def _kernels(bits: int, block_bytes: int, first_tried: float, steps: int) -> Kernels:
    """Return the kernels of the format with codes of 2, 4 or 5 bits. first_tried, steps: of the search for a scale."""
    fifth, two, top, start = bits == 5, bits == 2, np.float32(2**bits - 1), np.float32(first_tried)
    subs, sub, scale_top = (Q2_SUBS, Q2_SUB, np.float32(15)) if two else (SUBS, SUB, np.float32(63))

    @kernel
    def encode(x: Floats, importance: Floats, memory: Memory, raw: Bytes) -> None:
        for first in range(0, x.size // BLOCK_VALUES, LANES):
            load_blocks(x, first, BLOCK_VALUES, block_bytes, memory)
            for at in range(0, BLOCK_VALUES * LANES, LANES * sub):
                if two:
                    for i in range(at, at + LANES * sub, LANES):
                        store(memory.weights, i, absolute(load(memory.x, i)))
                else:
                    level = square_root(sum_of_squares(memory.x, at, sub) / np.float32(sub))
                    for i in range(at, at + LANES * sub, LANES):
                        store(memory.weights, i, level + absolute(load(memory.x, i)))
            _find_scales_and_minima(sub, top, start, np.float32(0.1), steps, two, memory)
            d, dmin = _linear_scales(subs, scale_top, memory)
            _requantize_offset(sub, top, d, dmin, memory)
            if two:
                _put_q2_k(d, dmin, memory, raw)
            else:
                _put(fifth, d, dmin, memory, raw)

    @kernel
    def weighted(x: Floats, importance: Floats, memory: Memory, raw: Bytes) -> None:
        for first in range(0, x.size // BLOCK_VALUES, LANES):
            load_blocks(x, first, BLOCK_VALUES, block_bytes, memory)
            importance_weights(x, importance, first, np.float32(1 if two else 2), sub, memory)
            _find_scales_and_minima(sub, top, np.float32(-0.9), np.float32(0.05), 36, False, memory)
            d, dmin = _weighted_scales(subs, scale_top, memory)
            _requantize_offset(sub, top, d, dmin, memory)
            if two:
                _put_q2_k(d, dmin, memory, raw)
            else:
                _put(fifth, d, dmin, memory, raw)

    @kernel
    def decode(raw: Bytes, values: Floats) -> None:
        for b in range(values.size // BLOCK_VALUES):
            at, to = block_bytes * b, BLOCK_VALUES * b
            d, dmin = load_half(raw, at), load_half(raw, at + DMIN)
            for j in range(SUBS):
                scale, minimum = _six_bits(raw, at + SCALES, j)
                scaled, offset = d * np.float32(scale), dmin * np.float32(minimum)
                for half in range(0, SUB, LANES):
                    q = load(raw, at + CODES + (32 if fifth else 0) + SUB * (j // 2) + half)
                    code = (q >> 4) if j % 2 else (q & 15)
                    if fifth:
                        code |= (load(raw, at + CODES + half) >> j & 1) << 4
                    store(values, to + SUB * j + half, scaled * to_float(code) - offset)

    return Kernels(encode, weighted, _decode_q2_k if two else decode)


@kernel
def _decode_q2_k(raw: Bytes, values: Floats) -> None:
    for b in range(values.size // BLOCK_VALUES):
        at, to = Q2_BLOCK_BYTES * b, BLOCK_VALUES * b
        d, dmin = load_half(raw, at + Q2_D), load_half(raw, at + Q2_DMIN)
        for j in range(Q2_SUBS):
            both = raw[at + Q2_SCALES + j]
            q = load(raw, at + Q2_QS + 32 * (j // 8) + 16 * (j % 2)) >> 2 * (j // 2 % 4) & 3
            scaled, offset = d * np.float32(both & 15), dmin * np.float32(both >> 4)
            store(values, to + Q2_SUB * j, scaled * to_float(q) - offset)


KERNELS = {
    "Q2_K": _kernels(2, Q2_BLOCK_BYTES, -0.5, 15),
    "Q4_K": _kernels(4, 144, -1, 20),
    "Q5_K": _kernels(5, 176, -0.5, 15),
}
encode, decode = codec(KERNELS)
