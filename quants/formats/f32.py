"""F32: IEEE single precision, as it is in memory."""

import numpy as np
from numpy.typing import NDArray

from ..format import Format

BLOCK = np.dtype("<f4")
FORMAT = Format("F32", 0, 1, BLOCK, codec=__name__, infinity=0x7F800000)


def encode(form: Format, rows: NDArray[np.float32], importance: NDArray[np.float32] | None = None) -> NDArray[np.uint8]:
    """Return float32 (n, width) → uint8 (n, 4 * width): a view where the machine is little endian."""
    return rows.astype(BLOCK, copy=False).view(np.uint8)


def decode(form: Format, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return uint8 (n, 4 * width) → float32 (n, width): a view where the machine is little endian."""
    return raw.view(BLOCK).astype(np.float32, copy=False)
