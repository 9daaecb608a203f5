"""NVFP4: 64 values of E2M1 (4-bit float), every 16 under a scale of unsigned E4M3. 4.5 bits per weight.

    byte   0                   4                               36
           | d[0]  ...    d[3] | qs[0]  qs[1]  ...      qs[31] |
           | e4m3 each         | 2 x 4 bits, low half first    |

    weight[16 * k + i] = d[k] * E2M1[low half of qs[8 * k + i]],  weight[16 * k + 8 + i] from the high half,  i < 8
    E2M1 = 0, 0.5, 1, 1.5, 2, 3, 4, 6, then the same negative

Encoder: byte for byte the same as ggml's reference: d is a sixth of the largest magnitude, rounded half up, and 448
where that reaches 256. There is no scale of the whole tensor here, so groups below 6 / 1024 vanish and values above
2688 saturate. It ignores importance weights.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..kernels.blocks import flat
from ..kernels.fp4 import DOUBLED, nearest_fp4
from ..kernels.jit import kernel_with_arrays
from ..kernels.lane_memory import load, lookup, store
from ..kernels.lanes import LANES, absolute, every, every_int, float_bits, lane, largest_lane, to_float

WEIGHTS, GROUP = 64, 16
BLOCK = np.dtype([("d", "u1", WEIGHTS // GROUP), ("qs", "u1", WEIGHTS // 2)])
SIZE = BLOCK.itemsize
QS = BLOCK.fields["qs"][1]  # type: ignore[index]
TOP_BINADE, LARGEST_CODE = 15 << 3, 0x7E


def _half_scales() -> NDArray[np.float32]:
    """Half of what each E4M3 byte means (E2M1 is kept doubled); the sign bit is not looked at, 0x7F counts as zero."""
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, (code & 7).astype(np.float32)
    scale = np.where(exponent == 0, mantissa * 2.0**-10, (8 + mantissa) * 2.0 ** (exponent - 11.0))
    scale[0x7F] = 0
    return scale.astype(np.float32)


HALF_SCALES = _half_scales()


def encode(rows: NDArray[np.float32], importance: NDArray[np.float32] | None = None) -> NDArray[np.uint8]:
    """float32 (n, width) → uint8 (n, width / 64 * 36). Importance has no effect."""
    raw = np.empty((len(rows), rows.shape[1] // WEIGHTS * SIZE), np.uint8)
    _encode(flat(rows), HALF_SCALES, raw.reshape(-1))
    return raw


def decode(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """uint8 (n, k * 36) → float32 (n, k * 64)."""
    values = np.empty((len(raw), raw.shape[1] // SIZE * WEIGHTS), np.float32)
    _decode(flat(raw), HALF_SCALES, DOUBLED, values.reshape(-1))
    return values


@kernel_with_arrays
def _encode(x: NDArray[np.float32], half_scales: NDArray[np.float32], raw: NDArray[np.uint8]) -> None:
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
        raw[SIZE * b + k] = code
        store(codes, 0, nearest_fp4(v, d) if d > 0 else every_int(0))
        for i in range(8):
            raw[SIZE * b + QS + 8 * k + i] = codes[i] | codes[8 + i] << 4


@kernel_with_arrays
def _decode(
    raw: NDArray[np.uint8], half_scales: NDArray[np.float32], doubled: NDArray[np.int8], values: NDArray[np.float32]
) -> None:
    codes = np.empty(WEIGHTS, np.uint8)
    for b in range(raw.size // SIZE):
        for i in range(0, WEIGHTS, 16):
            for j in range(8):
                byte = raw[SIZE * b + QS + i // 2 + j]
                codes[i + j], codes[i + 8 + j] = byte & 15, byte >> 4
        for k in range(4):
            d = half_scales[raw[SIZE * b + k]]
            store(values, WEIGHTS * b + GROUP * k, to_float(lookup(doubled, 0, load(codes, GROUP * k))) * d)
