"""Q3_K and Q6_K: 16 sub-blocks of 16 codes, each with a scale, which may be negative."""

import numpy as np

from ..formats.q3_k import BLOCK as Q3
from ..formats.q6_k import BLOCK as Q6
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
    load_importance,
    put_all,
    weigh_by_squares,
)
from .half import from_half, to_half
from .jit import inlined, kernel
from .lane_memory import load, put_halves, put_words, store
from .lanes import LANES, Lanes, any_lane, larger, round_even, smaller, to_float, to_int, where
from .scales import NOTHING, ONE, ZERO, extreme, refined_scale, signed_codes, signed_scale
from .superblocks import BLOCK_VALUES, FOUR_BITS, TWO_BITS, four, importance_weights, nearest_quotient, pair_words
from .wide_lanes import GROUPS, store_wide

Q3_BLOCK_BYTES, (Q3_HMASK, Q3_QS, Q3_SCALES, Q3_D) = Q3.itemsize, field_offsets(Q3)
Q6_BLOCK_BYTES, (Q6_QL, Q6_QH, Q6_SCALES, Q6_D) = Q6.itemsize, field_offsets(Q6)
Q3_TOP, Q6_TOP, SCALE_TOP = np.float32(4), np.float32(32), np.float32(32)
SUBS, SUB = 16, 16


@inlined
def _find_signed_scales(count: int, top: np.float32, memory: Memory) -> None:
    """Compute `signed_scale` of each sub-block of `count` values: the scale, and for the codes its inverse."""
    far = LANES * count
    for j in range(0, BLOCK_VALUES // count, GROUPS):
        scale, inverse = signed_scale(
            memory.x, memory.weights, memory.scratch, memory.limited, far * j, count, top, far
        )
        store_wide(memory.scales, LANES * j, LANES, scale)
        store_wide(memory.inverses, LANES * j, LANES, inverse)


@inlined
def _requantize_signed(
    count: int, top: np.float32, d: Lanes, old: Floats, inverses: Floats | None, memory: Memory
) -> None:
    """Compute codes 0 … 2 * top - 1 of sub-blocks of `count` values by their stored scales: nearest x / (d * scale),
    plus top.

    d: float16. Where a scale is 0 the search's codes stay: `old`, -top … top - 1, or what `inverses` give, where `old`
    is just scratch.
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


@kernel
def _encode_q3_k(x: Floats, importance: Floats, memory: Memory, raw: Bytes) -> None:
    scales, old = memory.scales, memory.weights
    for first in range(0, x.size // BLOCK_VALUES, LANES):
        load_blocks(x, first, BLOCK_VALUES, Q3_BLOCK_BYTES, memory)
        for j in range(0, SUBS, GROUPS):
            store_wide(scales, LANES * j, LANES, refined_scale(memory.x, SUB * LANES * j, SUB, Q3_TOP, old))
        signed, _ = extreme(scales, 0, SUBS)
        inverse = -SCALE_TOP / signed
        some = signed != ZERO
        for i in range(0, SUBS * LANES, LANES):
            code = signed_codes(load(scales, i), inverse, SCALE_TOP) + SCALE_TOP
            store(memory.scale_codes, i, to_int(where(some, code, ZERO)))
        _put_q3_k(to_half(where(some, ONE / inverse, ZERO)), old, None, memory, raw)


@kernel
def _weighted_q3_k(x: Floats, importance: Floats, memory: Memory, raw: Bytes) -> None:
    scales = memory.scales
    for first in range(0, x.size // BLOCK_VALUES, LANES):
        load_blocks(x, first, BLOCK_VALUES, Q3_BLOCK_BYTES, memory)
        importance_weights(x, importance, first, np.float32(2), SUB, memory)
        _find_signed_scales(SUB, Q3_TOP, memory)
        d, inverse = signed_scale(scales, memory.sums, memory.scratch, memory.limited, 0, SUBS, SCALE_TOP, None)
        for i in range(0, SUBS * LANES, LANES):
            code = signed_codes(load(scales, i), inverse, SCALE_TOP) + SCALE_TOP
            store(memory.scale_codes, i, to_int(where(inverse == ZERO, ZERO, code)))
        _put_q3_k(to_half(d), memory.weights, memory.inverses, memory, raw)


@inlined
def _put_q3_k(d: Lanes, old: Floats, inverses: Floats | None, memory: Memory, raw: Bytes) -> None:
    stored, codes, words, targets = memory.scale_codes, memory.codes, memory.words, memory.targets
    s0, s1, s2, s3 = four(stored, 0), four(stored, 4), four(stored, 8), four(stored, 12)
    put_words(raw, targets, Q3_SCALES, (s0 & FOUR_BITS) | (s2 & FOUR_BITS) << 4)
    put_words(raw, targets, Q3_SCALES + 4, (s1 & FOUR_BITS) | (s3 & FOUR_BITS) << 4)
    high = (s0 >> 4 & TWO_BITS) | (s1 >> 4 & TWO_BITS) << 2 | (s2 >> 4 & TWO_BITS) << 4 | (s3 >> 4 & TWO_BITS) << 6
    put_words(raw, targets, Q3_SCALES + 8, high)
    for i in range(0, SUBS * LANES, LANES):
        store(stored, i, load(stored, i) - 32)
    _requantize_signed(SUB, Q3_TOP, d, old, inverses, memory)
    bytes_to_words(codes, codes, BLOCK_VALUES)
    for k in range(8):
        high = (load(codes, LANES * k) >> 2) & 0x01010101
        for j in range(1, 8):
            high |= ((load(codes, LANES * (8 * j + k)) >> 2) & 0x01010101) << j
        store(words, LANES * k, high)
    put_all(raw, targets, Q3_HMASK, words, 8)
    pair_words(codes, codes)
    put_all(raw, targets, Q3_QS, codes, 16)
    put_halves(raw, targets, Q3_D, d)


@kernel
def _decode_q3_k(raw: Bytes, values: Floats) -> None:
    for b in range(values.size // BLOCK_VALUES):
        at, to = Q3_BLOCK_BYTES * b, BLOCK_VALUES * b
        d = load_half(raw, at + Q3_D)
        for j in range(SUBS):
            scale = raw[at + Q3_SCALES + j % 8] >> 4 * (j // 8) & 15
            scale |= (raw[at + Q3_SCALES + 8 + j % 4] >> 2 * (j // 4) & 3) << 4
            low = load(raw, at + Q3_QS + 32 * (j // 8) + 16 * (j % 2)) >> 2 * (j // 2 % 4) & 3
            high = load(raw, at + Q3_HMASK + 16 * (j % 2)) >> j // 2 & 1
            store(values, to + SUB * j, d * np.float32(scale - 32) * to_float((low | high << 2) - 4))


@kernel
def _encode_q6_k(x: Floats, importance: Floats, memory: Memory, raw: Bytes) -> None:
    for first in range(0, x.size // BLOCK_VALUES, LANES):
        load_blocks(x, first, BLOCK_VALUES, Q6_BLOCK_BYTES, memory)
        weigh_by_squares(memory.x, memory.weights, BLOCK_VALUES)
        _find_signed_scales(SUB, Q6_TOP, memory)
        _put_q6_k(memory, raw)


@kernel
def _weighted_q6_k(x: Floats, importance: Floats, memory: Memory, raw: Bytes) -> None:
    for first in range(0, x.size // BLOCK_VALUES, LANES):
        load_blocks(x, first, BLOCK_VALUES, Q6_BLOCK_BYTES, memory)
        load_importance(x, importance, first, BLOCK_VALUES, memory.starts, memory.weights)
        _find_signed_scales(SUB, Q6_TOP, memory)
        _put_q6_k(memory, raw)


@inlined
def _put_q6_k(memory: Memory, raw: Bytes) -> None:
    stored, codes, words, targets = memory.scale_codes, memory.codes, memory.words, memory.targets
    signed, peak = extreme(memory.scales, 0, SUBS)
    empty = peak < NOTHING
    inverse = np.float32(-128) / signed
    d = to_half(where(empty, ZERO, ONE / inverse))
    for i in range(0, SUBS * LANES, LANES):
        nearest = to_int(smaller(round_even(inverse * load(memory.scales, i)), np.float32(127)))
        store(stored, i, where(empty, 0, nearest))
    _requantize_signed(SUB, Q6_TOP, d, memory.weights, memory.inverses, memory)
    if any_lane(empty):
        for i in range(0, BLOCK_VALUES * LANES, LANES):
            store(codes, i, where(empty, 0, load(codes, i)))
    for i in range(0, SUBS * LANES, LANES):
        store(stored, i, load(stored, i) & 255)
    bytes_to_words(stored, stored, SUBS)
    bytes_to_words(codes, codes, BLOCK_VALUES)
    put_all(raw, targets, Q6_SCALES, stored, 4)
    put_halves(raw, targets, Q6_D, d)
    for half in range(2):
        for k in range(8):
            at = LANES * (32 * half + k)
            a, b = load(codes, at), load(codes, at + 8 * LANES)
            c, e = load(codes, at + 16 * LANES), load(codes, at + 24 * LANES)
            store(words, LANES * (16 * half + k), (a & FOUR_BITS) | (c & FOUR_BITS) << 4)
            store(words, LANES * (16 * half + k + 8), (b & FOUR_BITS) | (e & FOUR_BITS) << 4)
            high = (a >> 4 & TWO_BITS) | (b >> 4 & TWO_BITS) << 2 | (c >> 4 & TWO_BITS) << 4 | (e >> 4 & TWO_BITS) << 6
            store(words, LANES * (32 + 8 * half + k), high)
    put_all(raw, targets, Q6_QL, words, 32)
    put_all(raw, targets, Q6_QH, words[32 * LANES :], 16)


@kernel
def _decode_q6_k(raw: Bytes, values: Floats) -> None:
    for b in range(values.size // BLOCK_VALUES):
        at, to = Q6_BLOCK_BYTES * b, BLOCK_VALUES * b
        d = load_half(raw, at + Q6_D)
        for j in range(SUBS):
            half, part = j // 8, j % 8 // 2  # part: which of four groups of 32
            low = load(raw, at + Q6_QL + 64 * half + 32 * (part % 2) + 16 * (j % 2)) >> 4 * (part // 2) & 15
            high = load(raw, at + Q6_QH + 32 * half + 16 * (j % 2)) >> 2 * part & 3
            scale = d * np.float32(np.int8(raw[at + Q6_SCALES + j]))
            store(values, to + SUB * j, scale * to_float((low | high << 4) - 32))


KERNELS = {
    "Q3_K": Kernels(_encode_q3_k, _weighted_q3_k, _decode_q3_k),
    "Q6_K": Kernels(_encode_q6_k, _weighted_q6_k, _decode_q6_k),
}
encode, decode = codec(KERNELS)
