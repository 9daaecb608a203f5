"""Q3_K: 16 sub-blocks of 16 codes of 3 bits, each with a scale of 6 bits."""

from __future__ import annotations

import numpy as np

from ..format import Format
from ..formats.q3_k import BLOCK
from .blocks import Bytes, Floats, bytes_to_words, field_offsets, flat, load_half, put_all, raw_rows, value_rows
from .half import to_half
from .jit import inlined, kernel
from .lane_memory import load, put_halves, put_words, store
from .lanes import LANES, Lanes, to_float, to_int, where
from .scales import ONE, ZERO, extreme, refined_scale, signed_codes, signed_scale
from .superblocks import (
    BLOCK_VALUES,
    FOUR_BITS,
    TWO_BITS,
    Memory,
    find_signed_scales,
    four,
    importance_weights,
    load_blocks,
    load_importance,
    pair_words,
    requantize_signed,
    working_memory,
)
from .wide_lanes import GROUPS, store_wide

BLOCK_BYTES, (HMASK, QS, SCALES, D) = BLOCK.itemsize, field_offsets(BLOCK)
TOP, SCALE_TOP = np.float32(4), np.float32(32)
SUBS, SUB = 16, 16


def encode(form: Format, rows: Floats, importance: Floats | None) -> Bytes:
    raw = raw_rows(form, rows)
    if importance is None:
        _encode(flat(rows), working_memory(SUBS), raw.reshape(-1))
    else:
        _encode_weighted(flat(rows), flat(importance), working_memory(SUBS), raw.reshape(-1))
    return raw


def decode(form: Format, raw: Bytes) -> Floats:
    values = value_rows(form, raw)
    _decode(flat(raw), values.reshape(-1))
    return values


@kernel
def _encode(x: Floats, memory: Memory, raw: Bytes) -> None:
    scales, old = memory.scales, memory.weights
    for first in range(0, x.size // BLOCK_VALUES, LANES):
        load_blocks(x, first, BLOCK_BYTES, memory)
        for j in range(0, SUBS, GROUPS):
            store_wide(scales, LANES * j, LANES, refined_scale(memory.x, SUB * LANES * j, SUB, TOP, old))
        signed, _ = extreme(scales, 0, SUBS)
        inverse = -SCALE_TOP / signed
        some = signed != ZERO
        for i in range(0, SUBS * LANES, LANES):
            code = signed_codes(load(scales, i), inverse, SCALE_TOP) + SCALE_TOP
            store(memory.scale_codes, i, to_int(where(some, code, ZERO)))
        _put(to_half(where(some, ONE / inverse, ZERO)), old, None, memory, raw)


@kernel
def _encode_weighted(x: Floats, importance: Floats, memory: Memory, raw: Bytes) -> None:
    scales = memory.scales
    for first in range(0, x.size // BLOCK_VALUES, LANES):
        load_blocks(x, first, BLOCK_BYTES, memory)
        load_importance(x, importance, first, memory)
        importance_weights(np.float32(2), SUB, memory)
        find_signed_scales(SUB, TOP, memory)
        d, inverse = signed_scale(scales, memory.sums, memory.scratch, memory.room, 0, SUBS, SCALE_TOP, None)
        for i in range(0, SUBS * LANES, LANES):
            code = signed_codes(load(scales, i), inverse, SCALE_TOP) + SCALE_TOP
            store(memory.scale_codes, i, to_int(where(inverse == ZERO, ZERO, code)))
        _put(to_half(d), memory.weights, memory.inverses, memory, raw)


@inlined
def _put(d: Lanes, old: Floats, inverses: Floats | None, memory: Memory, raw: Bytes) -> None:
    stored, codes, words, targets = memory.scale_codes, memory.codes, memory.words, memory.targets
    s0, s1, s2, s3 = four(stored, 0), four(stored, 4), four(stored, 8), four(stored, 12)
    put_words(raw, targets, SCALES, (s0 & FOUR_BITS) | (s2 & FOUR_BITS) << 4)
    put_words(raw, targets, SCALES + 4, (s1 & FOUR_BITS) | (s3 & FOUR_BITS) << 4)
    high = (s0 >> 4 & TWO_BITS) | (s1 >> 4 & TWO_BITS) << 2 | (s2 >> 4 & TWO_BITS) << 4 | (s3 >> 4 & TWO_BITS) << 6
    put_words(raw, targets, SCALES + 8, high)
    for i in range(0, SUBS * LANES, LANES):
        store(stored, i, load(stored, i) - 32)
    requantize_signed(SUB, TOP, d, old, inverses, memory)
    bytes_to_words(codes, codes, BLOCK_VALUES)
    for k in range(8):
        high = (load(codes, LANES * k) >> 2) & 0x01010101
        for j in range(1, 8):
            high |= ((load(codes, LANES * (8 * j + k)) >> 2) & 0x01010101) << j
        store(words, LANES * k, high)
    put_all(raw, targets, HMASK, words, 8)
    pair_words(codes, codes)
    put_all(raw, targets, QS, codes, 16)
    put_halves(raw, targets, D, d)


@kernel
def _decode(raw: Bytes, values: Floats) -> None:
    for b in range(values.size // BLOCK_VALUES):
        at, to = BLOCK_BYTES * b, BLOCK_VALUES * b
        d = load_half(raw, at + D)
        for j in range(SUBS):
            scale = raw[at + SCALES + j % 8] >> 4 * (j // 8) & 15
            scale |= (raw[at + SCALES + 8 + j % 4] >> 2 * (j // 4) & 3) << 4
            low = load(raw, at + QS + 32 * (j // 8) + 16 * (j % 2)) >> 2 * (j // 2 % 4) & 3
            high = load(raw, at + HMASK + 16 * (j % 2)) >> j // 2 & 1
            store(values, to + SUB * j, d * np.float32(scale - 32) * to_float((low | high << 2) - 4))
