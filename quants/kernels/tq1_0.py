"""TQ1_0: 256 values of -1, 0 or 1, five to a byte, that share one half-precision scale."""

from __future__ import annotations

import numpy as np

from ..format import Format
from ..formats.tq1_0 import BLOCK
from .blocks import Bytes, Floats, flat, raw_rows, value_rows
from .half import to_half
from .jit import inlined, kernel, kernel_with_arrays
from .lane_memory import block_offsets, load, put_halves, store
from .lanes import LANES, Lanes, absolute, every, larger, largest_lane, to_float
from .rounding import half_away

BLOCK_VALUES = 256
BLOCK_BYTES = BLOCK.itemsize
QH = BLOCK.fields["qh"][1]  # type: ignore[index]
D = BLOCK.fields["d"][1]  # type: ignore[index]
# Where sixteen bytes' first values lie in a block, and how far apart their digits are.
GROUPS = ((0, 32), (16, 32), (160, 16))


def encode(form: Format, rows: Floats, importance: Floats | None) -> Bytes:
    """float32 (n, width) → uint8 (n, width / 256 * 54). Importance has no effect."""
    raw = raw_rows(form, rows)
    _encode(flat(rows), raw.reshape(-1))
    return raw


def decode(form: Format, raw: Bytes) -> Floats:
    """uint8 (n, k * 54) → float32 (n, k * 256)."""
    blocks = raw.reshape(-1).view(BLOCK)
    values = value_rows(form, raw)
    _decode(blocks["d"].astype(np.float32), flat(raw), values.reshape(-1))
    return values


@inlined
def _byte(trits: Lanes) -> Lanes:
    """ceil(trits * 256 / 243) for trits < 243."""
    return ((trits * 256 + 242) * 17261) >> 22


@kernel_with_arrays
def _encode(x: Floats, raw: Bytes) -> None:
    count = x.size // BLOCK_VALUES
    scales, targets = np.zeros(LANES, np.float32), np.empty(LANES, np.int64)
    last = np.empty(LANES, np.int32)
    for first in range(0, count, LANES):
        for b in range(first, min(first + LANES, count)):
            start = BLOCK_VALUES * b
            top = absolute(load(x, start))
            for i in range(start + LANES, start + BLOCK_VALUES, LANES):
                top = larger(top, absolute(load(x, i)))
            d = largest_lane(top)
            scales[b - first] = d
            inverse = np.float32(1) / d if d > 0 else np.float32(0)
            for g in range(3):
                at, step = start + GROUPS[g][0], GROUPS[g][1]
                trits = half_away(load(x, at) * inverse) + 1
                for j in range(1, 5):
                    trits = trits * 3 + half_away(load(x, at + j * step) * inverse) + 1
                store(raw, BLOCK_BYTES * b + LANES * g, _byte(trits))
            store(last, 0, half_away(load(x, start + 240) * inverse) + 1)
            for i in range(4):
                trits = ((last[i] * 3 + last[4 + i]) * 3 + last[8 + i]) * 3 + last[12 + i]
                raw[BLOCK_BYTES * b + QH + i] = (trits * 3 * 256 + 242) // 243
        block_offsets(first, count, BLOCK_BYTES, targets)
        for i in range(count - first, LANES):
            scales[i] = scales[count - first - 1]
        put_halves(raw, targets, D, to_half(load(scales, 0)))


@kernel
def _decode(scales: Floats, raw: Bytes, values: Floats) -> None:
    for b in range(scales.size):
        d = every(scales[b])
        for g in range(3):
            at, step = BLOCK_VALUES * b + GROUPS[g][0], GROUPS[g][1]
            trits = load(raw, BLOCK_BYTES * b + LANES * g)
            for j in range(5):
                store(values, at + j * step, to_float(((trits * 3) >> 8) - 1) * d)
                trits = (trits * 3) & 255
        for i in range(4):
            rest = np.int32(raw[BLOCK_BYTES * b + QH + i])
            for j in range(4):
                values[BLOCK_VALUES * b + 240 + 4 * j + i] = np.float32(((rest * 3) >> 8) - 1) * scales[b]
                rest = (rest * 3) & 255
