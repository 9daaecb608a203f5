"""I16: signed integers of 2 bytes. Files carry them; weights are never turned into them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..errors import FormatError

BLOCK = np.dtype("<i2")


def encode(rows: NDArray[np.float32], importance: NDArray[np.float32] | None = None) -> NDArray[np.uint8]:
    """Raise FormatError: nothing is quantized to I16."""
    raise FormatError("I16 tensors can be copied, but nothing can be encoded as I16")


def decode(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """uint8 (n, 2 * width) → float32 (n, width), each value rounded to the nearest float32."""
    return raw.view(BLOCK).astype(np.float32)
