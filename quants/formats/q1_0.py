"""Q1_0: 128 signs that share one half-precision scale. 1.125 bits per weight.

    byte   0      2                               18
           | d    | qs[0]  qs[1]  ...      qs[15] |
           | f16  | 8 bits each, lowest first     |

    weight[8 * i + j] = d if bit j of qs[i] else -d

Encoder: byte for byte the same as llama.cpp's: d is the mean magnitude. It ignores importance weights.
"""

import numpy as np

from ..codes import Bits, Codes, Plane, Scale
from ..format import Format

BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 16)])
FORMAT = Format(
    "Q1_0",
    41,
    128,
    BLOCK,
    codec="quants.kernels.bits_and_trits",
    activations="Q8_0",
    codes=Codes(128, (Plane(2, 1, 1),), scale=Scale((Bits(0, 16, 16),), apart=40)),
)
