"""MXFP4: 32 values of E2M1 (4-bit float) under one power of two, E8M0. 4.25 bits per weight.

    byte   0      1                               17
           | e    | qs[0]  qs[1]  ...      qs[15] |
           | u8   | 2 x 4 bits, low half first    |

    weight[i] = 2 ** (e - 127) * E2M1[low half of qs[i]],  weight[16 + i] from the high half
    E2M1 = 0, 0.5, 1, 1.5, 2, 3, 4, 6, then the same negative

Encoder: byte for byte the same as llama.cpp's: e is such that the largest magnitude lies between 4 and 8, values
above 6 saturate. It ignores importance weights.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..codes import Bits, Codes, Plane, Scale
from ..format import Format

BLOCK = np.dtype([("e", "u1"), ("qs", "u1", 16)])


def bad_blocks(blocks: NDArray[Any]) -> NDArray[np.bool_]:
    """Return whether the exponent is 255: NaN."""
    return np.asarray(blocks["e"] == 255)


FORMAT = Format(
    "MXFP4",
    39,
    32,
    BLOCK,
    codec="quants.kernels.fp4",
    fallback="F16",
    activations="Q8_0",
    bad_blocks=bad_blocks,
    codes=Codes(32, (Plane(1, 4, 16),), even=False, scale=Scale((Bits(0, 8, 8),))),
)
