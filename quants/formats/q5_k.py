"""Q5_K: 8 sub-blocks of 32 codes of 5 bits, each with a scale and a minimum of 6 bits. 5.5 bits per weight.

    byte   0     2      4                    16           48                               176
           | d   | dmin | scales             | qh          | qs[0]    qs[1]   ...    qs[127] |
           | f16 | f16  | 8 scales, 8 minima | fifth bits  | 2 x 4 bits ...                  |

    scales: `put_head` in kernels/superblocks.py; qs: `nibble_words` there
    bit j of qh[l] = code[32 * j + l] >> 4
    weight[i] = d * scale[i / 32] * code[i] - dmin * minimum[i / 32]

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
from ..kernels.jit import inlined, kernel, kernel_with_arrays
from ..kernels.lane_memory import block_offsets, load, store, transpose
from ..kernels.lanes import LANES, Lanes, lane, to_float
from ..kernels.scales import MINIMUM, SCALE, linear_codes, positive_scale
from ..kernels.superblocks import (
    ROOM,
    SIZE,
    WEIGHT,
    find_scales_and_minima,
    importance_weights,
    level_weights,
    nibble_words,
    put_head,
    requantize_offset,
    six_bits,
    weight_sums,
    working_memory,
)

BLOCK = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qh", "u1", 32), ("qs", "u1", 128)])
BYTES, (D, DMIN, SCALES, QH, QS) = BLOCK.itemsize, field_offsets(BLOCK)
USES_IMPORTANCE = True
TOP, SCALE_TOP = np.float32(31), np.float32(63)
SUBS, SUB = 8, 32


def encode(rows: Floats, importance: Floats | None = None) -> NDArray[np.uint8]:
    """float32 (n, width) → uint8 (n, width / 256 * 176)."""
    raw = raw_rows(rows, SIZE, BLOCK)
    if importance is None:
        _encode(flat(rows), working_memory(SUBS), raw.reshape(-1))
    else:
        _encode_weighted(flat(rows), flat(importance), working_memory(SUBS), raw.reshape(-1))
    return raw


def decode(raw: NDArray[np.uint8]) -> Floats:
    """uint8 (n, width / 256 * 176) → float32 (n, width)."""
    values = value_rows(raw, SIZE, BLOCK)
    _decode(flat(raw), values.reshape(-1))
    return values


@kernel
def _encode(x: Floats, memory: Any, raw: NDArray[np.uint8]) -> None:
    count = x.size // SIZE
    (starts, targets, _), (side, weights, scratch, _), found, stored, codes, words = memory
    for first in range(0, count, LANES):
        block_offsets(first, count, SIZE, starts)
        block_offsets(first, count, BYTES, targets)
        transpose(x, starts, SIZE, side)
        level_weights(side, SUB, weights)
        find_scales_and_minima(side, weights, SUB, TOP, np.float32(-0.5), np.float32(0.1), 15, False, scratch, found)
        d = linear_codes(found[SCALE], SUBS, SCALE_TOP, stored[0])
        dmin = linear_codes(found[MINIMUM], SUBS, SCALE_TOP, stored[1])
        _put(side, to_half(d), to_half(dmin), stored, found, codes, words, raw, targets)


@kernel
def _encode_weighted(x: Floats, importance: Floats, memory: Any, raw: NDArray[np.uint8]) -> None:
    count, per_row = x.size // SIZE, importance.size // SIZE
    (starts, targets, columns), (side, weights, scratch, _), found, stored, codes, words = memory
    for first in range(0, count, LANES):
        block_offsets(first, count, SIZE, starts)
        block_offsets(first, count, BYTES, targets)
        column_offsets(first, count, SIZE, per_row, columns)
        transpose(x, starts, SIZE, side)
        transpose(importance, columns, SIZE, weights)
        importance_weights(side, weights, np.float32(2), weights)
        weight_sums(weights, SUB, found[WEIGHT])
        find_scales_and_minima(side, weights, SUB, TOP, np.float32(-0.9), np.float32(0.05), 36, False, scratch, found)
        d = positive_scale(found[SCALE], found[WEIGHT], SUBS, SCALE_TOP, found[ROOM], stored[0])
        dmin = positive_scale(found[MINIMUM], found[WEIGHT], SUBS, SCALE_TOP, found[ROOM], stored[1])
        _put(side, to_half(d), to_half(dmin), stored, found, codes, words, raw, targets)


@inlined
def _put(
    side: Floats, d: Lanes, dmin: Lanes, stored: tuple[Words, ...], found: tuple[Floats, ...], codes: Words,
    words: Words, raw: NDArray[np.uint8], targets: Offsets,
) -> None:  # fmt: skip
    requantize_offset(side, SUB, TOP, from_half(d), from_half(dmin), stored, found, codes)
    bytes_to_words(codes, codes, SIZE)
    for k in range(8):
        high = (load(codes, LANES * k) >> 4) & 0x01010101
        for j in range(1, SUBS):
            high |= ((load(codes, LANES * (8 * j + k)) >> 4) & 0x01010101) << j
        store(words, LANES * k, high)
    put_all(raw, targets, QH, words, 8)
    nibble_words(codes, codes)
    put_head(d, dmin, stored, words, raw, targets)
    put_all(raw, targets, QS, codes, 32)


@kernel_with_arrays
def _decode(raw: NDArray[np.uint8], values: Floats) -> None:
    scales, minima = np.empty(SUBS, np.float32), np.empty(SUBS, np.float32)
    for b in range(values.size // SIZE):
        at, to = BYTES * b, SIZE * b
        d, dmin = lane(load_half(raw, at + D), 0), lane(load_half(raw, at + DMIN), 0)
        for j in range(SUBS):
            scale, minimum = six_bits(raw, at + SCALES, j)
            scales[j], minima[j] = d * np.float32(scale), dmin * np.float32(minimum)
        for half in range(0, SUB, LANES):
            high = load(raw, at + QH + half) << 4
            for j in range(0, SUBS, 2):
                q = load(raw, at + QS + SUB * (j // 2) + half)
                first, second = (q & 15) | (high >> j & 16), (q >> 4) | (high >> (j + 1) & 16)
                store(values, to + SUB * j + half, scales[j] * to_float(first) - minima[j])
                store(values, to + SUB * (j + 1) + half, scales[j + 1] * to_float(second) - minima[j + 1])
