"""Q2_0: 64 values of two bits that share one half-precision scale. 2.25 bits per weight.

    byte   0      2                               18
           | d    | qs[0]  qs[1]  ...      qs[15] |
           | f16  | 4 x 2 bits, lowest first      |

    weight[4 * i + j] = d * (q - 1),  q = 2 bits of qs[i] from bit 2 * j on

Encoder: byte for byte the same as llama.cpp's: d is the largest magnitude, so q = 3 is never written. It ignores
importance weights.
"""

import numpy as np

from ..codes import Bits, Codes, Plane, Scale
from ..format import Format

BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 16)])
FORMAT = Format(
    "Q2_0",
    42,
    64,
    BLOCK,
    codec="quants.kernels.bits_and_trits",
    fallback="Q4_0",
    activations="Q8_0",
    codes=Codes(64, (Plane(2, 2, 1),), unused=1, scale=Scale((Bits(0, 16, 16),), apart=160)),
)
