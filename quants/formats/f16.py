"""F16: IEEE half precision, one value in two bytes.

Encoder: the nearest value, ties to even, subnormals kept; the same bytes as llama.cpp's.
"""

import numpy as np
from numpy.typing import NDArray

from ..format import Format

BLOCK = np.dtype("<f2")


def decode_small(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return uint8 (n, 2 * width) → float32 (n, width)."""
    return raw.view("<f2").astype(np.float32)


FORMAT = Format(
    "F16",
    1,
    1,
    BLOCK,
    codec="quants.kernels.half_precision",
    activations="F16",
    infinity=0x7C00,
    decode_small=decode_small,
)
