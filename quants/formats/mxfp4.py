"""MXFP4: 32 values of E2M1 (4-bit float) under one power of two, E8M0. 4.25 bits per weight.

    byte   0      1                               17
           | e    | qs[0]  qs[1]  ...      qs[15] |
           | u8   | 2 x 4 bits, low half first    |

    weight[i] = 2 ** (e - 127) * E2M1[low half of qs[i]],  weight[16 + i] from the high half
    E2M1 = 0, 0.5, 1, 1.5, 2, 3, 4, 6, then the same negative

Encoder: byte for byte the same as ggml's reference: e is such that the largest magnitude lies between 4 and 8, values
above 6 saturate. It ignores importance weights.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..kernels.blocks import flat
from ..kernels.fp4 import DOUBLED, expand_fp4, nearest_fp4
from ..kernels.jit import kernel
from ..kernels.lane_memory import load, store
from ..kernels.lanes import LANES, absolute, every, float_bits, lane, larger, largest_lane

WEIGHTS = 32
BLOCK = np.dtype([("e", "u1"), ("qs", "u1", WEIGHTS // 2)])
SIZE = BLOCK.itemsize
QS = BLOCK.fields["qs"][1]  # type: ignore[index]


def _half_scales() -> NDArray[np.float32]:
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


def encode(rows: NDArray[np.float32], importance: NDArray[np.float32] | None = None) -> NDArray[np.uint8]:
    """float32 (n, width) → uint8 (n, width / 32 * 17). Importance has no effect."""
    raw = np.empty((len(rows), rows.shape[1] // WEIGHTS * SIZE), np.uint8)
    _encode(flat(rows), HALF_SCALES, ROUNDED_UP, raw.reshape(-1))
    return raw


def decode(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """uint8 (n, k * 17) → float32 (n, k * 32)."""
    values = np.empty((len(raw), raw.shape[1] // SIZE * WEIGHTS), np.float32)
    _decode(flat(raw), HALF_SCALES, DOUBLED, values.reshape(-1))
    return values


@kernel
def _encode(
    x: NDArray[np.float32], half_scales: NDArray[np.float32], rounded_up: NDArray[np.int32], raw: NDArray[np.uint8]
) -> None:
    for b in range(x.size // WEIGHTS):
        low, high = load(x, WEIGHTS * b), load(x, WEIGHTS * b + LANES)
        top = largest_lane(larger(absolute(low), absolute(high)))
        bits = lane(float_bits(every(top)), 0)
        exponent = bits >> 23
        if bits >= rounded_up[exponent]:
            exponent += 1
        e = (exponent - 2) & 255 if bits else 0
        d = half_scales[e]
        raw[SIZE * b] = e
        store(raw, SIZE * b + QS, nearest_fp4(low, d) | (nearest_fp4(high, d) << 4))


@kernel
def _decode(
    raw: NDArray[np.uint8], half_scales: NDArray[np.float32], doubled: NDArray[np.int8], values: NDArray[np.float32]
) -> None:
    for b in range(raw.size // SIZE):
        expand_fp4(raw, SIZE * b + QS, half_scales[raw[SIZE * b]], doubled, values, WEIGHTS * b)
