"""Q6_K: 16 sub-blocks of 16 codes of 6 bits, each with a scale of 8 bits. 6.5625 bits per weight.

    byte   0                   128                 192                      208    210
           | ql[0] ...  ql[127] | qh[0]  ... qh[63] | scales[0] ... [15]     | d    |
           | 2 x lower 4 bits   | 4 x upper 2 bits  | i8                     | f16  |

    of 128 codes: ql[l] = code[l] & 15 | (code[l + 64] & 15) << 4 for l < 64,
    qh[l] = upper bits of code[l], code[l + 32], code[l + 64], code[l + 96] from the lowest up for l < 32
    weight[i] = d * scales[i / 16] * (code[i] - 32)

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
from ..kernels.lane_memory import block_offsets, load, put_halves, store, transpose
from ..kernels.lanes import LANES, any_lane, round_even, smaller, to_float, to_int, where
from ..kernels.scales import NOTHING, ZERO, extreme
from ..kernels.superblocks import SIZE, find_signed_scales, requantize_signed, working_memory

BLOCK = np.dtype([("ql", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), ("d", "<f2")])
BYTES, (QL, QH, SCALES, D) = BLOCK.itemsize, field_offsets(BLOCK)
USES_IMPORTANCE = True
TOP = np.float32(32)
LOW, PAIR = 0x0F0F0F0F, 0x03030303  # in each byte of a word: four bits, two bits
SUBS, SUB = 16, 16


def encode(rows: Floats, importance: Floats | None = None) -> NDArray[np.uint8]:
    """float32 (n, width) → uint8 (n, width / 256 * 210)."""
    raw = raw_rows(rows, SIZE, BLOCK)
    if importance is None:
        _encode(flat(rows), working_memory(SUBS), raw.reshape(-1))
    else:
        _encode_weighted(flat(rows), flat(importance), working_memory(SUBS), raw.reshape(-1))
    return raw


def decode(raw: NDArray[np.uint8]) -> Floats:
    """uint8 (n, width / 256 * 210) → float32 (n, width)."""
    values = value_rows(raw, SIZE, BLOCK)
    _decode(flat(raw), flat(raw.view(np.int8)), values.reshape(-1))
    return values


@kernel
def _encode(x: Floats, memory: Any, raw: NDArray[np.uint8]) -> None:
    count = x.size // SIZE
    (starts, targets, _), (side, weights, scratch, limited), of_subs, (stored, _), codes, words = memory
    scales, inverses, _, _, _, _ = of_subs
    for first in range(0, count, LANES):
        block_offsets(first, count, SIZE, starts)
        block_offsets(first, count, BYTES, targets)
        transpose(x, starts, SIZE, side)
        for i in range(0, SIZE * LANES, LANES):
            v = load(side, i)
            store(weights, i, v * v)
        find_signed_scales(side, weights, SUB, TOP, scales, inverses, scratch, limited)
        _put(side, weights, scales, inverses, stored, codes, words, raw, targets)


@kernel
def _encode_weighted(x: Floats, importance: Floats, memory: Any, raw: NDArray[np.uint8]) -> None:
    count, per_row = x.size // SIZE, importance.size // SIZE
    (starts, targets, columns), (side, weights, scratch, limited), of_subs, (stored, _), codes, words = memory
    scales, inverses, _, _, _, _ = of_subs
    for first in range(0, count, LANES):
        block_offsets(first, count, SIZE, starts)
        block_offsets(first, count, BYTES, targets)
        column_offsets(first, count, SIZE, per_row, columns)
        transpose(x, starts, SIZE, side)
        transpose(importance, columns, SIZE, weights)
        find_signed_scales(side, weights, SUB, TOP, scales, inverses, scratch, limited)
        _put(side, weights, scales, inverses, stored, codes, words, raw, targets)


@inlined
def _put(
    side: Floats, room: Floats, scales: Floats, inverses: Floats, stored: Words, codes: Words,
    words: Words, raw: NDArray[np.uint8], targets: Offsets,
) -> None:  # fmt: skip
    signed, peak = extreme(scales, 0, SUBS)
    empty = peak < NOTHING
    inverse = np.float32(-128) / signed
    d = to_half(where(empty, ZERO, np.float32(1) / inverse))
    for i in range(0, SUBS * LANES, LANES):
        nearest = to_int(smaller(round_even(inverse * load(scales, i)), np.float32(127)))
        store(stored, i, where(empty, 0, nearest))
    requantize_signed(side, SUB, TOP, from_half(d), stored, room, inverses, codes)
    if any_lane(empty):
        for i in range(0, SIZE * LANES, LANES):
            store(codes, i, where(empty, 0, load(codes, i)))
    for i in range(0, SUBS * LANES, LANES):
        store(stored, i, load(stored, i) & 255)
    bytes_to_words(stored, stored, SUBS)
    bytes_to_words(codes, codes, SIZE)
    put_all(raw, targets, SCALES, stored, 4)
    put_halves(raw, targets, D, d)
    for half in range(2):
        for k in range(8):
            at = LANES * (32 * half + k)
            a, b = load(codes, at), load(codes, at + 8 * LANES)
            c, e = load(codes, at + 16 * LANES), load(codes, at + 24 * LANES)
            store(words, LANES * (16 * half + k), (a & LOW) | (c & LOW) << 4)
            store(words, LANES * (16 * half + k + 8), (b & LOW) | (e & LOW) << 4)
            high = (a >> 4 & PAIR) | (b >> 4 & PAIR) << 2 | (c >> 4 & PAIR) << 4 | (e >> 4 & PAIR) << 6
            store(words, LANES * (32 + 8 * half + k), high)
    put_all(raw, targets, QL, words, 32)
    put_all(raw, targets, QH, words[32 * LANES :], 16)


@kernel
def _decode(raw: NDArray[np.uint8], signed: NDArray[np.int8], values: Floats) -> None:
    for b in range(values.size // SIZE):
        at, to = BYTES * b, SIZE * b
        d = load_half(raw, at + D)
        for j in range(SUBS):
            half, part = j // 8, j % 8 // 2  # part: which of four groups of 32
            low = load(raw, at + QL + 64 * half + 32 * (part % 2) + 16 * (j % 2)) >> 4 * (part // 2) & 15
            high = load(raw, at + QH + 32 * half + 16 * (j % 2)) >> 2 * part & 3
            scale = d * np.float32(signed[at + SCALES + j])
            store(values, to + SUB * j, scale * to_float((low | high << 4) - 32))
