"""NVFP4: 64 values of E2M1 (4-bit float), every 16 under a scale of unsigned E4M3."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..format import Format
from ..formats.nvfp4 import BLOCK
from .blocks import Bytes, Floats, flat, raw_rows, value_rows
from .fp4 import DOUBLED, nearest_fp4
from .jit import kernel_with_arrays
from .lane_memory import load, lookup, store
from .lanes import LANES, absolute, every, every_int, float_bits, lane, largest_lane, to_float

BLOCK_VALUES, GROUP = 64, 16
BLOCK_BYTES = BLOCK.itemsize
QS = BLOCK.fields["qs"][1]  # type: ignore[index]
TOP_BINADE, LARGEST_CODE = 15 << 3, 0x7E


def _half_scales() -> Floats:
    """Half of what each E4M3 byte means (E2M1 is kept doubled); the sign bit is not looked at, 0x7F counts as zero."""
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, (code & 7).astype(np.float32)
    scale = np.where(exponent == 0, mantissa * 2.0**-10, (8 + mantissa) * 2.0 ** (exponent - 11.0))
    scale[0x7F] = 0
    return scale.astype(np.float32)


HALF_SCALES = _half_scales()


def encode(form: Format, rows: Floats, importance: Floats | None) -> Bytes:
    """float32 (n, width) → uint8 (n, width / 64 * 36). Importance has no effect."""
    raw = raw_rows(form, rows)
    _encode(flat(rows), HALF_SCALES, raw.reshape(-1))
    return raw


def decode(form: Format, raw: Bytes) -> Floats:
    """uint8 (n, k * 36) → float32 (n, k * 64)."""
    values = value_rows(form, raw)
    _decode(flat(raw), HALF_SCALES, DOUBLED, values.reshape(-1))
    return values


@kernel_with_arrays
def _encode(x: Floats, half_scales: Floats, raw: Bytes) -> None:
    codes = np.empty(LANES, np.uint8)
    for g in range(x.size // GROUP):
        b, k = g // 4, g % 4
        v = load(x, GROUP * g)
        wanted = largest_lane(absolute(v)) / np.float32(6)
        bits = lane(float_bits(every(wanted)), 0)
        exponent = (bits >> 23) - 120
        if exponent > 0:
            code = (bits + 0x00080000 >> 20) - (120 << 3)
            code = code if code < TOP_BINADE else LARGEST_CODE
        else:
            code = min(int(wanted * np.float32(512) + np.float32(0.5)), 7)
        d = half_scales[code]
        raw[BLOCK_BYTES * b + k] = code
        store(codes, 0, nearest_fp4(v, d) if d > 0 else every_int(0))
        for i in range(8):
            raw[BLOCK_BYTES * b + QS + 8 * k + i] = codes[i] | codes[8 + i] << 4


@kernel_with_arrays
def _decode(
    raw: Bytes, half_scales: Floats, doubled: NDArray[np.int8], values: Floats
) -> None:
    codes = np.empty(BLOCK_VALUES, np.uint8)
    for b in range(raw.size // BLOCK_BYTES):
        for i in range(0, BLOCK_VALUES, 16):
            for j in range(8):
                byte = raw[BLOCK_BYTES * b + QS + i // 2 + j]
                codes[i + j], codes[i + 8 + j] = byte & 15, byte >> 4
        for k in range(4):
            d = half_scales[raw[BLOCK_BYTES * b + k]]
            store(values, BLOCK_VALUES * b + GROUP * k, to_float(lookup(doubled, 0, load(codes, GROUP * k))) * d)
