"""Q8_0: 32 signed bytes that share one half-precision scale. 8.5 bits per weight.

    byte   0     2                              34
           | d   | qs[0]  qs[1]  ...     qs[31]  |
           | f16 | i8                            |

    weight[i] = d * qs[i]

Encoder: byte for byte the same as llama.cpp's. Importance has no effect.
"""

import numpy as np

from ..codes import Bits, Codes, Plane, Scale
from ..format import Format

BLOCK = np.dtype([("d", "<f2"), ("qs", "i1", 32)])
FORMAT = Format(
    "Q8_0",
    8,
    32,
    BLOCK,
    codec="quants.kernels.small_blocks",
    fallback="F16",
    activations="Q8_0",
    codes=Codes(32, (Plane(2, 8, 32),), signed=True, scale=Scale((Bits(0, 16, 16),), apart=40)),
)
