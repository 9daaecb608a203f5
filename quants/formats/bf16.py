"""BF16: the upper two bytes of a float32.

Encoder: the nearest value, ties to even, NaN made quiet; the same bytes as llama.cpp's.
"""

import numpy as np
from numpy.typing import NDArray

from ..format import Format

BLOCK = np.dtype("<u2")


def decode_small(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return uint8 (n, 2 * width) → float32 (n, width)."""
    values: NDArray[np.float32] = np.left_shift(raw.view("<u2"), 16, dtype=np.uint32).view(np.float32)
    return values


FORMAT = Format(
    "BF16",
    30,
    1,
    BLOCK,
    codec="quants.kernels.half_precision",
    activations="BF16",
    infinity=0x7F80,
    decode_small=decode_small,
)
