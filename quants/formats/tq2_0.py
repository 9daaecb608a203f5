"""TQ2_0: 256 values of -1, 0 or 1 (or 2), two bits each, that share one half-precision scale. 2.0625 bits per weight.

    byte   0                              64     66
           | qs[0]  qs[1]  ...     qs[63] | d    |
           | 4 x 2 bits                   | f16  |

    weight[128 * k + 32 * j + i] = d * (q - 1),  q = 2 bits of qs[32 * k + i] from bit 2 * j on

Encoder: byte for byte the same as llama.cpp's: d is the largest magnitude, so q = 3 is never written. It ignores
importance weights, and is made for models trained with such weights.
"""

import numpy as np

from ..codes import Bits, Codes, Plane, Scale
from ..format import Format

BLOCK = np.dtype([("qs", "u1", 64), ("d", "<f2")])
FORMAT = Format(
    "TQ2_0",
    35,
    256,
    BLOCK,
    codec="quants.kernels.bits_and_trits",
    fallback="Q4_0",
    activations="Q8_K",
    codes=Codes(256, (Plane(0, 2, 32),), unused=1, scale=Scale((Bits(512, 16, 16),), apart=160)),
)
