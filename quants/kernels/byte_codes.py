"""Codes of one byte to floats, as quantized checkpoints store them: value = table[code] * scale of its group."""

import numpy as np
from numpy.typing import NDArray

from .jit import kernel

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


@kernel
def decode_codes(codes: Bytes, table: Floats, scales: Floats, out: Floats) -> None:
    """Decode rows. codes: (n, width); table: (256,); scales: (n, groups), of width / groups values each → out (n,
    width).
    """
    each = out.shape[1] // scales.shape[1]
    for row in range(out.shape[0]):
        for group in range(scales.shape[1]):
            scale = scales[row, group]
            for i in range(group * each, (group + 1) * each):
                out[row, i] = table[codes[row, i]] * scale
