"""MXFP4: 32 values of E2M1 (4-bit float) under one power of two, E8M0."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..format import Format
from ..formats.mxfp4 import BLOCK
from .blocks import Bytes, Floats, flat, raw_rows, value_rows
from .fp4 import DOUBLED, expand_fp4, nearest_fp4
from .jit import kernel
from .lane_memory import load, store
from .lanes import LANES, absolute, every, float_bits, lane, larger, largest_lane

BLOCK_VALUES = 32
BLOCK_BYTES = BLOCK.itemsize
QS = BLOCK.fields["qs"][1]  # type: ignore[index]


def _half_scales() -> Floats:
    """Half of 2 ** (e - 127) for e = 0 … 255 (E2M1 is kept doubled); the first two are subnormal."""
    e = np.arange(256, dtype=np.uint32)
    return np.where(e < 2, np.uint32(0x00200000) << e, (e - (e > 0)) << 23).astype(np.uint32).view(np.float32)


def _rounded_up() -> NDArray[np.int32]:
    """From which bits on, in each binade of a float32's exponent field, log2 in float32 is the next whole number.

    The logarithm of a number just below a power of two rounds to that power's: the exponent field is one too low then.
    """
    field = np.arange(256, dtype=np.uint32)
    below = np.arange(1 << 11, dtype=np.uint32)[::-1]
    bits = (field[:, None] << 23) | (0x7FFFFF - below)
    with np.errstate(invalid="ignore", divide="ignore"):
        log2 = np.log2(bits.view(np.float32).astype(np.float64)).astype(np.float32)
    reached = (log2 >= field[:, None].astype(np.float32) - 126).sum(1).astype(np.uint32)
    first: NDArray[np.int32] = (((field + 1) << 23) - reached).view(np.int32)
    return first


HALF_SCALES, ROUNDED_UP = _half_scales(), _rounded_up()


def encode(form: Format, rows: Floats, importance: Floats | None) -> Bytes:
    """float32 (n, width) → uint8 (n, width / 32 * 17). Importance has no effect."""
    raw = raw_rows(form, rows)
    _encode(flat(rows), HALF_SCALES, ROUNDED_UP, raw.reshape(-1))
    return raw


def decode(form: Format, raw: Bytes) -> Floats:
    """uint8 (n, k * 17) → float32 (n, k * 32)."""
    values = value_rows(form, raw)
    _decode(flat(raw), HALF_SCALES, DOUBLED, values.reshape(-1))
    return values


@kernel
def _encode(
    x: Floats, half_scales: Floats, rounded_up: NDArray[np.int32], raw: Bytes
) -> None:
    for b in range(x.size // BLOCK_VALUES):
        low, high = load(x, BLOCK_VALUES * b), load(x, BLOCK_VALUES * b + LANES)
        top = largest_lane(larger(absolute(low), absolute(high)))
        bits = lane(float_bits(every(top)), 0)
        exponent = bits >> 23
        if bits >= rounded_up[exponent]:
            exponent += 1
        e = (exponent - 2) & 255 if bits else 0
        d = half_scales[e]
        raw[BLOCK_BYTES * b] = e
        store(raw, BLOCK_BYTES * b + QS, nearest_fp4(low, d) | (nearest_fp4(high, d) << 4))


@kernel
def _decode(
    raw: Bytes, half_scales: Floats, doubled: NDArray[np.int8], values: Floats
) -> None:
    for b in range(raw.size // BLOCK_BYTES):
        expand_fp4(raw, BLOCK_BYTES * b + QS, half_scales[raw[BLOCK_BYTES * b]], doubled, values, BLOCK_VALUES * b)
