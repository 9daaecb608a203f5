"""F16: IEEE half precision, one value in two bytes.

Encoder: the nearest value, ties to even, subnormals kept; the same bytes as ggml's reference.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..kernels.blocks import flat
from ..kernels.half import from_half, to_half
from ..kernels.lanes import LANES, kernel, load, store

BLOCK = np.dtype("<u2")


def encode(rows: NDArray[np.float32], importance: NDArray[np.float32] | None = None) -> NDArray[np.uint8]:
    """float32 (n, width) → uint8 (n, 2 * width). Importance has no effect."""
    bits = np.empty(rows.shape, BLOCK)
    _encode(flat(rows), bits.reshape(-1))
    return bits.view(np.uint8)


def decode(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """uint8 (n, 2 * width) → float32 (n, width)."""
    bits = raw.view(BLOCK)
    values = np.empty(bits.shape, np.float32)
    _decode(flat(bits), values.reshape(-1))
    return values


@kernel
def _encode(x: NDArray[np.float32], bits: NDArray[np.uint16]) -> None:
    whole = x.size - x.size % LANES
    for i in range(0, whole, LANES):
        store(bits, i, to_half(load(x, i)))
    if whole < x.size:
        padded, narrow = np.zeros(LANES, np.float32), np.empty(LANES, np.uint16)
        padded[: x.size - whole] = x[whole:]
        store(narrow, 0, to_half(load(padded, 0)))
        bits[whole:] = narrow[: x.size - whole]


@kernel
def _decode(bits: NDArray[np.uint16], values: NDArray[np.float32]) -> None:
    whole = bits.size - bits.size % LANES
    for i in range(0, whole, LANES):
        store(values, i, from_half(load(bits, i)))
    if whole < bits.size:
        padded, wide = np.zeros(LANES, np.uint16), np.empty(LANES, np.float32)
        padded[: bits.size - whole] = bits[whole:]
        store(wide, 0, from_half(load(padded, 0)))
        values[whole:] = wide[: bits.size - whole]
