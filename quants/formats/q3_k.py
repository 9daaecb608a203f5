"""Q3_K: 16 sub-blocks of 16 codes of 3 bits, each with a scale of 6 bits. 3.4375 bits per weight.

    byte   0           32                        96                    108   110
           | hmask     | qs[0]    ...    qs[63]  | scales              | d   |
           | third bit | 4 x lower 2 bits        | 16 scales of 6 bits | f16 |

    bit j of hmask[l] = code[32 * j + l] >> 2; qs: `pair_words` in kernels/superblocks.py
    scales[j] = scale[j] & 15 | (scale[j + 8] & 15) << 4 for j < 8,
    scales[j + 8] = upper bits of scale[j], scale[j + 4], scale[j + 8], scale[j + 12] from the lowest up for j < 4
    weight[i] = d * (scale[i / 16] - 32) * (code[i] - 4)

Encoder: byte for byte the same as ggml's reference, with and without importance weights.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..kernels.blocks import (
    Floats,
    Offsets,
    Words,
    bytes_to_words,
    column_offsets,
    field_offsets,
    flat,
    load_half,
    put_all,
    raw_rows,
    value_rows,
)
from ..kernels.half import from_half, to_half
from ..kernels.jit import inlined, kernel
from ..kernels.lane_memory import block_offsets, load, put_halves, put_words, store, transpose
from ..kernels.lanes import LANES, Lanes, to_float, to_int, where
from ..kernels.scales import ZERO, extreme, refined_scale, signed_codes, signed_scale
from ..kernels.superblocks import (
    SIZE,
    find_signed_scales,
    four,
    importance_weights,
    pair_words,
    requantize_signed,
    weight_sums,
    working_memory,
)
from ..kernels.wide_lanes import GROUPS, store_wide

BLOCK = np.dtype([("hmask", "u1", 32), ("qs", "u1", 64), ("scales", "u1", 12), ("d", "<f2")])
BYTES, (HMASK, QS, SCALES, D) = BLOCK.itemsize, field_offsets(BLOCK)
USES_IMPORTANCE = True
TOP, SCALE_TOP = np.float32(4), np.float32(32)
LOW, PAIR = 0x0F0F0F0F, 0x03030303  # in each byte of a word: four bits, two bits
SUBS, SUB = 16, 16


def encode(rows: Floats, importance: Floats | None = None) -> NDArray[np.uint8]:
    """float32 (n, width) → uint8 (n, width / 256 * 110)."""
    raw = raw_rows(rows, SIZE, BLOCK)
    if importance is None:
        _encode(flat(rows), working_memory(SUBS), raw.reshape(-1))
    else:
        _encode_weighted(flat(rows), flat(importance), working_memory(SUBS), raw.reshape(-1))
    return raw


def decode(raw: NDArray[np.uint8]) -> Floats:
    """uint8 (n, width / 256 * 110) → float32 (n, width)."""
    values = value_rows(raw, SIZE, BLOCK)
    _decode(flat(raw), values.reshape(-1))
    return values


@kernel
def _encode(x: Floats, memory: Any, raw: NDArray[np.uint8]) -> None:
    count = x.size // SIZE
    (starts, targets, _), (side, old, _, _), (scales, _, _, _, _, _), (stored, _), codes, words = memory
    for first in range(0, count, LANES):
        block_offsets(first, count, SIZE, starts)
        block_offsets(first, count, BYTES, targets)
        transpose(x, starts, SIZE, side)
        for j in range(0, SUBS, GROUPS):
            store_wide(scales, LANES * j, LANES, refined_scale(side, SUB * LANES * j, SUB, TOP, old))
        signed, _ = extreme(scales, 0, SUBS)
        inverse = -SCALE_TOP / signed
        some = signed != ZERO
        for i in range(0, SUBS * LANES, LANES):
            code = signed_codes(load(scales, i), inverse, SCALE_TOP) + SCALE_TOP
            store(stored, i, to_int(where(some, code, ZERO)))
        _put(side, to_half(where(some, np.float32(1) / inverse, ZERO)), stored, old, None, codes, words, raw, targets)


@kernel
def _encode_weighted(x: Floats, importance: Floats, memory: Any, raw: NDArray[np.uint8]) -> None:
    count, per_row = x.size // SIZE, importance.size // SIZE
    (starts, targets, columns), (side, weights, scratch, limited), of_subs, (stored, _), codes, words = memory
    scales, sums, inverses, room, _, _ = of_subs
    for first in range(0, count, LANES):
        block_offsets(first, count, SIZE, starts)
        block_offsets(first, count, BYTES, targets)
        column_offsets(first, count, SIZE, per_row, columns)
        transpose(x, starts, SIZE, side)
        transpose(importance, columns, SIZE, weights)
        importance_weights(side, weights, np.float32(2), weights)
        weight_sums(weights, SUB, sums)
        find_signed_scales(side, weights, SUB, TOP, scales, inverses, scratch, limited)
        d, inverse = signed_scale(scales, sums, scratch, room, 0, SUBS, SCALE_TOP, None)
        for i in range(0, SUBS * LANES, LANES):
            code = signed_codes(load(scales, i), inverse, SCALE_TOP) + SCALE_TOP
            store(stored, i, to_int(where(inverse == ZERO, ZERO, code)))
        _put(side, to_half(d), stored, weights, inverses, codes, words, raw, targets)


@inlined
def _put(
    side: Floats, d: Lanes, stored: Words, old: Floats, inverses: Floats | None, codes: Words,
    words: Words, raw: NDArray[np.uint8], targets: Offsets,
) -> None:  # fmt: skip
    s0, s1, s2, s3 = four(stored, 0), four(stored, 4), four(stored, 8), four(stored, 12)
    put_words(raw, targets, SCALES, (s0 & LOW) | (s2 & LOW) << 4)
    put_words(raw, targets, SCALES + 4, (s1 & LOW) | (s3 & LOW) << 4)
    high = (s0 >> 4 & PAIR) | (s1 >> 4 & PAIR) << 2 | (s2 >> 4 & PAIR) << 4 | (s3 >> 4 & PAIR) << 6
    put_words(raw, targets, SCALES + 8, high)
    for i in range(0, SUBS * LANES, LANES):
        store(stored, i, load(stored, i) - 32)
    requantize_signed(side, SUB, TOP, from_half(d), stored, old, inverses, codes)
    bytes_to_words(codes, codes, SIZE)
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
def _decode(raw: NDArray[np.uint8], values: Floats) -> None:
    for b in range(values.size // SIZE):
        at, to = BYTES * b, SIZE * b
        d = load_half(raw, at + D)
        for j in range(SUBS):
            scale = raw[at + SCALES + j % 8] >> 4 * (j // 8) & 15
            scale |= (raw[at + SCALES + 8 + j % 4] >> 2 * (j // 4) & 3) << 4
            low = load(raw, at + QS + 32 * (j // 8) + 16 * (j % 2)) >> 2 * (j // 2 % 4) & 3
            high = load(raw, at + HMASK + 16 * (j % 2)) >> j // 2 & 1
            store(values, to + SUB * j, d * np.float32(scale - 32) * to_float((low | high << 2) - 4))
