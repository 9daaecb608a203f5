"""Q2_K: 16 sub-blocks of 16 codes of 2 bits, each with a scale and a minimum of 4 bits. 2.625 bits per weight.

    byte   0                          16                            80    82     84
           | scales[0]  ... scales[15] | qs[0]    ...        qs[63] | d   | dmin |
           | scale, minimum            | 4 codes                    | f16 | f16  |

    scales[j] = scale[j] | minimum[j] << 4; qs: `pair_words` in kernels/superblocks.py
    weight[i] = d * scale[i / 16] * code[i] - dmin * minimum[i / 16]

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
from ..kernels.lane_memory import block_offsets, load, put_words, store, transpose
from ..kernels.lanes import LANES, Lanes, absolute, to_float
from ..kernels.scales import MINIMUM, SCALE, linear_codes, positive_scale
from ..kernels.superblocks import (
    ROOM,
    SIZE,
    WEIGHT,
    find_scales_and_minima,
    four,
    importance_weights,
    pair_words,
    requantize_offset,
    weight_sums,
    working_memory,
)

BLOCK = np.dtype([("scales", "u1", 16), ("qs", "u1", 64), ("d", "<f2"), ("dmin", "<f2")])
BYTES, (SCALES, QS, D, DMIN) = BLOCK.itemsize, field_offsets(BLOCK)
USES_IMPORTANCE = True
TOP, SCALE_TOP = np.float32(3), np.float32(15)
SUBS, SUB = 16, 16


def encode(rows: Floats, importance: Floats | None = None) -> NDArray[np.uint8]:
    """float32 (n, width) → uint8 (n, width / 256 * 84)."""
    raw = raw_rows(rows, SIZE, BLOCK)
    if importance is None:
        _encode(flat(rows), working_memory(SUBS), raw.reshape(-1))
    else:
        _encode_weighted(flat(rows), flat(importance), working_memory(SUBS), raw.reshape(-1))
    return raw


def decode(raw: NDArray[np.uint8]) -> Floats:
    """uint8 (n, width / 256 * 84) → float32 (n, width)."""
    values = value_rows(raw, SIZE, BLOCK)
    _decode(flat(raw), values.reshape(-1))
    return values


@kernel
def _encode(x: Floats, memory: Any, raw: NDArray[np.uint8]) -> None:
    count = x.size // SIZE
    (starts, targets, _), (side, weights, scratch, _), found, stored, codes, _ = memory
    for first in range(0, count, LANES):
        block_offsets(first, count, SIZE, starts)
        block_offsets(first, count, BYTES, targets)
        transpose(x, starts, SIZE, side)
        for i in range(0, SIZE * LANES, LANES):
            store(weights, i, absolute(load(side, i)))
        find_scales_and_minima(side, weights, SUB, TOP, np.float32(-0.5), np.float32(0.1), 15, True, scratch, found)
        d = linear_codes(found[SCALE], SUBS, SCALE_TOP, stored[0])
        dmin = linear_codes(found[MINIMUM], SUBS, SCALE_TOP, stored[1])
        _put(side, to_half(d), to_half(dmin), stored, found, codes, raw, targets)


@kernel
def _encode_weighted(x: Floats, importance: Floats, memory: Any, raw: NDArray[np.uint8]) -> None:
    count, per_row = x.size // SIZE, importance.size // SIZE
    (starts, targets, columns), (side, weights, scratch, _), found, stored, codes, _ = memory
    for first in range(0, count, LANES):
        block_offsets(first, count, SIZE, starts)
        block_offsets(first, count, BYTES, targets)
        column_offsets(first, count, SIZE, per_row, columns)
        transpose(x, starts, SIZE, side)
        transpose(importance, columns, SIZE, weights)
        importance_weights(side, weights, np.float32(1), weights)
        weight_sums(weights, SUB, found[WEIGHT])
        find_scales_and_minima(side, weights, SUB, TOP, np.float32(-0.9), np.float32(0.05), 36, False, scratch, found)
        d = positive_scale(found[SCALE], found[WEIGHT], SUBS, SCALE_TOP, found[ROOM], stored[0])
        dmin = positive_scale(found[MINIMUM], found[WEIGHT], SUBS, SCALE_TOP, found[ROOM], stored[1])
        _put(side, to_half(d), to_half(dmin), stored, found, codes, raw, targets)


@inlined
def _put(
    side: Floats, d: Lanes, dmin: Lanes, stored: tuple[Words, ...], found: tuple[Floats, ...], codes: Words,
    raw: NDArray[np.uint8], targets: Offsets,
) -> None:  # fmt: skip
    requantize_offset(side, SUB, TOP, from_half(d), from_half(dmin), stored, found, codes)
    bytes_to_words(codes, codes, SIZE)
    pair_words(codes, codes)
    put_words(raw, targets, D, d | (dmin << 16))
    for k in range(4):
        put_words(raw, targets, SCALES + 4 * k, four(stored[0], 4 * k) | (four(stored[1], 4 * k) << 4))
    put_all(raw, targets, QS, codes, 16)


@kernel
def _decode(raw: NDArray[np.uint8], values: Floats) -> None:
    for b in range(values.size // SIZE):
        at, to = BYTES * b, SIZE * b
        d, dmin = load_half(raw, at + D), load_half(raw, at + DMIN)
        for j in range(SUBS):
            both = raw[at + SCALES + j]
            q = load(raw, at + QS + 32 * (j // 8) + 16 * (j % 2)) >> 2 * (j // 2 % 4) & 3
            scaled, offset = d * np.float32(both & 15), dmin * np.float32(both >> 4)
            store(values, to + SUB * j, scaled * to_float(q) - offset)
