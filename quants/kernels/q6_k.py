"""Q6_K: 16 sub-blocks of 16 codes of 6 bits, each with a scale of 8 bits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..format import Format
from ..formats.q6_k import BLOCK
from .blocks import Bytes, Floats, bytes_to_words, field_offsets, flat, load_half, put_all, raw_rows, value_rows
from .half import to_half
from .jit import inlined, kernel
from .lane_memory import load, put_halves, store
from .lanes import LANES, any_lane, round_even, smaller, to_float, to_int, where
from .scales import NOTHING, ONE, ZERO, extreme
from .superblocks import (
    BLOCK_VALUES,
    FOUR_BITS,
    TWO_BITS,
    Memory,
    find_signed_scales,
    load_blocks,
    load_importance,
    requantize_signed,
    working_memory,
)

BLOCK_BYTES, (QL, QH, SCALES, D) = BLOCK.itemsize, field_offsets(BLOCK)
TOP = np.float32(32)
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
    _decode(flat(raw), flat(raw.view(np.int8)), values.reshape(-1))
    return values


@kernel
def _encode(x: Floats, memory: Memory, raw: Bytes) -> None:
    for first in range(0, x.size // BLOCK_VALUES, LANES):
        load_blocks(x, first, BLOCK_BYTES, memory)
        for i in range(0, BLOCK_VALUES * LANES, LANES):
            v = load(memory.x, i)
            store(memory.weights, i, v * v)
        find_signed_scales(SUB, TOP, memory)
        _put(memory, raw)


@kernel
def _encode_weighted(x: Floats, importance: Floats, memory: Memory, raw: Bytes) -> None:
    for first in range(0, x.size // BLOCK_VALUES, LANES):
        load_blocks(x, first, BLOCK_BYTES, memory)
        load_importance(x, importance, first, memory)
        find_signed_scales(SUB, TOP, memory)
        _put(memory, raw)


@inlined
def _put(memory: Memory, raw: Bytes) -> None:
    stored, codes, words, targets = memory.scale_codes, memory.codes, memory.words, memory.targets
    signed, peak = extreme(memory.scales, 0, SUBS)
    empty = peak < NOTHING
    inverse = np.float32(-128) / signed
    d = to_half(where(empty, ZERO, ONE / inverse))
    for i in range(0, SUBS * LANES, LANES):
        nearest = to_int(smaller(round_even(inverse * load(memory.scales, i)), np.float32(127)))
        store(stored, i, where(empty, 0, nearest))
    requantize_signed(SUB, TOP, d, memory.weights, memory.inverses, memory)
    if any_lane(empty):
        for i in range(0, BLOCK_VALUES * LANES, LANES):
            store(codes, i, where(empty, 0, load(codes, i)))
    for i in range(0, SUBS * LANES, LANES):
        store(stored, i, load(stored, i) & 255)
    bytes_to_words(stored, stored, SUBS)
    bytes_to_words(codes, codes, BLOCK_VALUES)
    put_all(raw, targets, SCALES, stored, 4)
    put_halves(raw, targets, D, d)
    for half in range(2):
        for k in range(8):
            at = LANES * (32 * half + k)
            a, b = load(codes, at), load(codes, at + 8 * LANES)
            c, e = load(codes, at + 16 * LANES), load(codes, at + 24 * LANES)
            store(words, LANES * (16 * half + k), (a & FOUR_BITS) | (c & FOUR_BITS) << 4)
            store(words, LANES * (16 * half + k + 8), (b & FOUR_BITS) | (e & FOUR_BITS) << 4)
            high = (a >> 4 & TWO_BITS) | (b >> 4 & TWO_BITS) << 2 | (c >> 4 & TWO_BITS) << 4 | (e >> 4 & TWO_BITS) << 6
            store(words, LANES * (32 + 8 * half + k), high)
    put_all(raw, targets, QL, words, 32)
    put_all(raw, targets, QH, words[32 * LANES :], 16)


@kernel
def _decode(raw: Bytes, signed: NDArray[np.int8], values: Floats) -> None:
    for b in range(values.size // BLOCK_VALUES):
        at, to = BLOCK_BYTES * b, BLOCK_VALUES * b
        d = load_half(raw, at + D)
        for j in range(SUBS):
            half, part = j // 8, j % 8 // 2  # part: which of four groups of 32
            low = load(raw, at + QL + 64 * half + 32 * (part % 2) + 16 * (j % 2)) >> 4 * (part // 2) & 15
            high = load(raw, at + QH + 32 * half + 16 * (j % 2)) >> 2 * part & 3
            scale = d * np.float32(signed[at + SCALES + j])
            store(values, to + SUB * j, scale * to_float((low | high << 4) - 32))
