"""F64: double precision of 8 bytes. Files carry them; weights are never turned into them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..errors import FormatError

BLOCK = np.dtype("<f8")


def encode(rows: NDArray[np.float32], importance: NDArray[np.float32] | None = None) -> NDArray[np.uint8]:
    """Raise FormatError: nothing is quantized to F64."""
    raise FormatError("F64 tensors can be copied, but nothing can be encoded as F64")


def decode(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """uint8 (n, 8 * width) → float32 (n, width), each value rounded to the nearest float32."""
    with np.errstate(over="ignore"):  # past float32: infinity
        return raw.view(BLOCK).astype(np.float32)
