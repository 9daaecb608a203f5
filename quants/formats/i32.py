"""I32: signed integers of 4 bytes. Files carry them; weights are never turned into them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..errors import FormatError

BLOCK = np.dtype("<i4")


def encode(rows: NDArray[np.float32], importance: NDArray[np.float32] | None = None) -> NDArray[np.uint8]:
    """Raise FormatError: nothing is quantized to I32."""
    raise FormatError("I32 tensors can be copied, but nothing can be encoded as I32")


def decode(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """uint8 (n, 4 * width) → float32 (n, width), each value rounded to the nearest float32."""
    return raw.view(BLOCK).astype(np.float32)
