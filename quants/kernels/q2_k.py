"""Q2_K: 16 sub-blocks of 16 codes of 2 bits, each with a scale and a minimum of 4 bits."""

from __future__ import annotations

import numpy as np

from ..format import Format
from ..formats.q2_k import BLOCK
from .blocks import Bytes, Floats, field_offsets, flat, load_half, put_all, raw_rows, value_rows
from .jit import inlined, kernel
from .lane_memory import load, put_words, store
from .lanes import LANES, Lanes, absolute, to_float
from .superblocks import (
    BLOCK_VALUES,
    Memory,
    find_scales_and_minima,
    four,
    importance_weights,
    linear_scales,
    load_blocks,
    load_importance,
    pair_words,
    requantize_offset,
    weighted_scales,
    working_memory,
)

BLOCK_BYTES, (SCALES, QS, D, DMIN) = BLOCK.itemsize, field_offsets(BLOCK)
TOP, SCALE_TOP = np.float32(3), np.float32(15)
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
    for first in range(0, x.size // BLOCK_VALUES, LANES):
        load_blocks(x, first, BLOCK_BYTES, memory)
        for i in range(0, BLOCK_VALUES * LANES, LANES):
            store(memory.weights, i, absolute(load(memory.x, i)))
        find_scales_and_minima(SUB, TOP, np.float32(-0.5), np.float32(0.1), 15, True, memory)
        d, dmin = linear_scales(SUBS, SCALE_TOP, memory)
        _put(d, dmin, memory, raw)


@kernel
def _encode_weighted(x: Floats, importance: Floats, memory: Memory, raw: Bytes) -> None:
    for first in range(0, x.size // BLOCK_VALUES, LANES):
        load_blocks(x, first, BLOCK_BYTES, memory)
        load_importance(x, importance, first, memory)
        importance_weights(np.float32(1), SUB, memory)
        find_scales_and_minima(SUB, TOP, np.float32(-0.9), np.float32(0.05), 36, False, memory)
        d, dmin = weighted_scales(SUBS, SCALE_TOP, memory)
        _put(d, dmin, memory, raw)


@inlined
def _put(d: Lanes, dmin: Lanes, memory: Memory, raw: Bytes) -> None:
    targets = memory.targets
    requantize_offset(SUB, TOP, d, dmin, memory)
    pair_words(memory.codes, memory.codes)
    put_words(raw, targets, D, d | (dmin << 16))
    for k in range(4):
        both = four(memory.scale_codes, 4 * k) | (four(memory.minimum_codes, 4 * k) << 4)
        put_words(raw, targets, SCALES + 4 * k, both)
    put_all(raw, targets, QS, memory.codes, 16)


@kernel
def _decode(raw: Bytes, values: Floats) -> None:
    for b in range(values.size // BLOCK_VALUES):
        at, to = BLOCK_BYTES * b, BLOCK_VALUES * b
        d, dmin = load_half(raw, at + D), load_half(raw, at + DMIN)
        for j in range(SUBS):
            both = raw[at + SCALES + j]
            q = load(raw, at + QS + 32 * (j // 8) + 16 * (j % 2)) >> 2 * (j // 2 % 4) & 3
            scaled, offset = d * np.float32(both & 15), dmin * np.float32(both >> 4)
            store(values, to + SUB * j, scaled * to_float(q) - offset)
