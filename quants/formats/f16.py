"""F16: IEEE half precision, one value in two bytes.

Encoder: the nearest value, ties to even, subnormals kept; the same bytes as ggml's reference.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..kernels.blocks import filled, flat
from ..kernels.half import from_half, to_half
from ..kernels.jit import kernel
from ..kernels.lane_memory import load, store
from ..kernels.lanes import LANES

BLOCK = np.dtype("<u2")


def encode(rows: NDArray[np.float32], importance: NDArray[np.float32] | None = None) -> NDArray[np.uint8]:
    """float32 (n, width) → uint8 (n, 2 * width). Importance has no effect."""
    values = filled(flat(rows))
    bits = np.empty(values.size, BLOCK)
    _encode(values, bits)
    return bits[: rows.size].reshape(rows.shape).view(np.uint8)


def decode(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """uint8 (n, 2 * width) → float32 (n, width)."""
    shape = raw.view(BLOCK).shape
    bits = filled(flat(raw.view(BLOCK)))
    values = np.empty(bits.size, np.float32)
    _decode(bits, values)
    return values[: raw.size // 2].reshape(shape)


@kernel
def _encode(x: NDArray[np.float32], bits: NDArray[np.uint16]) -> None:
    last = x.size - LANES  # the last sixteen may be some of those before, too
    for i in range(0, last, LANES):
        store(bits, i, to_half(load(x, i)))
    store(bits, last, to_half(load(x, last)))


@kernel
def _decode(bits: NDArray[np.uint16], values: NDArray[np.float32]) -> None:
    last = bits.size - LANES
    for i in range(0, last, LANES):
        store(values, i, from_half(load(bits, i)))
    store(values, last, from_half(load(bits, last)))
