"""IQ4_NL: 32 values of 4 bits, numbers of sixteen unevenly spaced levels, under one scale. 4.5 bits per weight.

    byte   0      2                               18
           | d    | qs[0]  qs[1]  ...      qs[15] |
           | f16  | 2 x 4 bits, low half first    |

    weight[i] = d * LEVEL[low half of qs[i]],  weight[16 + i] from the high half
    LEVEL = -127 -104 -83 -65 -49 -35 -22 -10 1 13 25 38 53 69 89 113

Encoder: byte for byte the same as llama.cpp's: the best of 16 scales by weighted square error.
"""

import numpy as np

from ..codes import Bits, Codes, Plane, Scale
from ..format import Format

BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 16)])
FORMAT = Format(
    "IQ4_NL",
    20,
    32,
    BLOCK,
    codec="quants.kernels.iq4",
    importance="used",
    fallback="F16",
    activations="Q8_0",
    codes=Codes(32, (Plane(2, 4, 16),), even=False, scale=Scale((Bits(0, 16, 16),), apart=40)),
)
